"""Models are converted from each format into each."""

import dataclasses
import json
import math
import shutil

import pytest
import tensorflow as tf

from albert_tf.config import ConvertConfig, FinetuningConfig
from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.convert import (
    convert,
    make_model_card,
    write_run,
)
from albert_tf.runs.directory import load_config, null_threshold
from albert_tf.runs.log import read_metrics
from albert_tf.training import evaluate, train
from tests.helpers import google_albert_graph, tiny_run
from tests.helpers.conversion import (
    assert_same,
    change_json,
    converted,
)
from tests.helpers.google_albert_graph import CONFIG
from tests.helpers.small_builds import read_files
from tests.helpers.tiny_albert import HEADS, TINY, random_weights


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_converted_run_is_evaluated(tmp_path, source, tiny_records, capsys):
    """Its metrics are those that the original run has logged."""
    converted(source, tmp_path / "folder")
    converted(tmp_path / "folder", tmp_path / "run")
    *_, expected = read_metrics(str(source))
    del expected["split"], expected["evaluation_seconds"]
    capsys.readouterr()
    evaluate.evaluate_run(tiny_run.make_config(tiny_records, tmp_path / "run"))
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics | {"step": 12} == pytest.approx(expected, rel=1e-5)


def test_a_converted_run_cannot_be_resumed(tmp_path, source, tiny_records):
    """The attempt does not change its files, e.g. its vocabulary."""
    converted(source, tmp_path / "folder")
    converted(tmp_path / "folder", tmp_path / "run")
    before = read_files(tmp_path / "run")
    for allow in (False, True):
        config = tiny_run.make_config(
            tiny_records, tmp_path / "run", allow_config_change=allow
        )
        with pytest.raises(
            UserError, match=r"Received: a converted model.*--init_checkpoint"
        ):
            train.train(config)
    assert read_files(tmp_path / "run") == before


# --- refusals -----------------------------------------------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory, source, google_albert_dir):
    """Models that cannot be converted, and places that are no models."""
    here = tmp_path_factory.mktemp("sources")
    (here / "empty").mkdir()
    (here / "text.txt").write_text("text")
    for name in ("a.bin", "b.pt", "c.h5", "d.ckpt"):
        (here / name).mkdir()
        (here / name / "config.json").write_text("{}")
        (here / name / name).write_bytes(b"\x80\x04.")
    shutil.copytree(google_albert_dir, here / "small")
    google_albert_graph.write(here / "small" / "model.ckpt-best", CONFIG)
    (here / "small.tar.gz").write_bytes(b"")
    for name, changes in (
        ("wide", {"intermediate_size": 23}),
        ("inner", {"intermediate_size": 23, "inner_group_num": 2}),
    ):
        shutil.copytree(source, here / name)
        file = here / name / "config.json"
        model = json.loads(file.read_text())["model"] | changes
        change_json(file, model=model)
    shared = dataclasses.replace(TINY, parameter_sharing="attention")
    for name, weights in (
        ("beam", random_weights(TINY, "none", head=HEADS["beam"])),
        ("shared", random_weights(shared)),
    ):
        write_run(weights, str(here / name), str(here / name))
    return here


UNSAFE = "cannot run code.*Received: .*{}.*save_pretrained"
VOCABULARY = r"30k-clean\.model must agree .*vocab_size 30000 and 11"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"from_": ""}, "--from is required"),
        ({"to": ""}, "--to is required"),
        ({"to": "{here}/wide"}, "--to must be new, or"),
        ({"to": "{here}/text.txt"}, "--to must be new, or"),
        ({"from_": "{here}/none"}, "none, which does not exist"),
        ({"from_": "{here}/empty"}, "empty, with no files"),
        ({"from_": "{here}/text.txt"}, r"Received: .*text\.txt"),
        ({"from_": "{here}/a.bin"}, UNSAFE.format("a.bin")),
        ({"from_": "{here}/b.pt/b.pt"}, UNSAFE.format("b.pt")),
        ({"from_": "{here}/c.h5"}, UNSAFE.format("c.h5")),
        ({"from_": "{here}/d.ckpt/d.ckpt"}, UNSAFE.format("d.ckpt")),
        ({"from_": "{here}/small"}, VOCABULARY),
        ({"from_": "{here}/small.tar.gz"}, "Unpack the archive, and give"),
        ({"from_": "{here}/wide"}, r"\[16, 24\], not \[16, 23\]"),
        ({"from_": "{here}/inner"}, r"inner_group_1.* is missing"),
        ({"from_": "{here}/beam"}, "squad_head=beam.*--squad_head=plain"),
        (
            {"from_": "{here}/shared"},
            "sharing must be all .*Received: attenti",
        ),
        (
            {"from_": "{run}/checkpoints/step-00000003"},
            "step-00000003, which does not exist",
        ),
    ],
)
def test_a_refused_conversion_writes_nothing(
    settings, message, sources, source, google_albert_dir
):
    before = sorted(sources.rglob("*"))
    places = {"here": sources, "run": source, "published": google_albert_dir}
    settings = {"from_": "{run}", "to": "{here}/out"} | settings
    with pytest.raises(UserError, match=message):
        convert(
            ConvertConfig(
                **{
                    name: v.format(**places) if isinstance(v, str) else v
                    for name, v in settings.items()
                }
            )
        )
    assert sorted(sources.rglob("*")) == before


def test_empty_directories_are_filled_also_behind_a_link(
    tmp_path, google_albert_dir
):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    converted(google_albert_dir, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "config.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "link"]


def test_files_that_another_process_wrote_meanwhile_are_kept(
    tmp_path, google_albert_dir, monkeypatch
):
    """Converting the largest models takes minutes."""
    write = hugging_face.write

    def write_as_another_does(*arguments):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "file").write_text("another's")
        return write(*arguments)

    monkeypatch.setattr(hugging_face, "write", write_as_another_does)
    with pytest.raises(UserError, match="--to must be new"):
        converted(google_albert_dir, tmp_path / "out", "hugging_face")
    assert (tmp_path / "out" / "file").read_text() == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_leaves_nothing_behind(small_disk, google_albert_dir):
    with pytest.raises((OSError, tf.errors.ResourceExhaustedError)):
        converted(google_albert_dir, small_disk / "out")
    assert not list(small_disk.iterdir())


# --- fine-tuned models --------------------------------------------------------

QUESTIONS = {
    "max_seq_length": 6,
    "doc_stride": 3,
    "max_query_length": 2,
    "max_answer_length": 4,
    "n_best_size": 7,
    "null_threshold": 1.25,
}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("classification", {"max_seq_length": 5}),
        ("regression", {"max_seq_length": 5}),
        ("multiple_choice", {"max_seq_length": 6, "max_qa_length": 3}),
        ("question_answering", QUESTIONS),
        ("question_answering", QUESTIONS | {"null_threshold": math.inf}),
    ],
)
def test_a_fine_tuned_run_becomes_a_folder_and_back(kind, settings, tmp_path):
    """An infinite threshold answers every question."""
    settings = settings | {"classifier_dropout": 0.25}
    weights = random_weights(TINY, "none", head=HEADS[kind], settings=settings)
    run, folder = str(tmp_path / "run"), tmp_path / "hf"
    write_run(weights, run, run)
    assert formats.read_weights(run).settings == settings

    converted(run, folder)
    read = converted(folder, tmp_path / "back")

    assert_same(read, weights)
    assert read.settings == settings
    text = (folder / "config.json").read_text()
    # Infinity is not JSON.
    stored = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert stored["classifier_dropout_prob"] == 0.25
    stored["albert_tf"].pop("null_threshold", 0)
    assert stored["albert_tf"].items() <= settings.items()
    if kind == "question_answering":
        threshold = settings["null_threshold"]
        back = str(tmp_path / "back")
        config = load_config(back, FinetuningConfig)
        assert null_threshold(back, config) == threshold


# --- the model card -----------------------------------------------------------


def test_the_card_of_a_fine_tuned_model_names_its_task():
    weights = random_weights(TINY, "none", head=HEADS["classification"])
    card = make_model_card(weights)
    assert "pipeline_tag: text-classification" in card
    assert "fine-tuned for classification" in card
    card = make_model_card(random_weights(TINY, "sop"))
    assert card.startswith("---\nlicense: unknown\n")
    assert "the sentence objective sop" in card
