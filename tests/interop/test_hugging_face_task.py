"""Fine-tuned models are written for Hugging Face, and read from there."""

import json
import math

import pytest

from albert_tf.config import ConvertConfig, FinetuningConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.interop import convert, hugging_face
from albert_tf.interop.formats import read_weights
from albert_tf.interop.verify import compare
from albert_tf.runs.directory import load_config, null_threshold
from tests.helpers.hugging_face_folder import assert_equal, change_config
from tests.helpers.tiny_albert import TINY, random_weights

HEADS = {
    "classification": TaskHeadConfig("classification", ("no", "yes", "maybe")),
    "regression": TaskHeadConfig("regression"),
    "multiple_choice": TaskHeadConfig("multiple_choice", num_choices=4),
    "question_answering": TaskHeadConfig("question_answering"),
}
QUESTIONS = {
    "max_seq_length": 6,
    "doc_stride": 3,
    "max_query_length": 2,
    "max_answer_length": 4,
    "n_best_size": 7,
    "null_threshold": 1.25,
}


@pytest.mark.interop
@pytest.mark.parametrize("kind", HEADS)
def test_transformers_loads_a_fine_tuned_model(kind, tmp_path):
    """With no missing or unknown weight, and with the same logits."""
    weights = random_weights(TINY, "none", head=HEADS[kind])
    hugging_face.write(weights, str(tmp_path))
    differences = compare(weights, str(tmp_path))
    span = {"start_logits", "end_logits"}
    has_spans = weights.head.kind == "question_answering"
    assert set(differences) == (span if has_spans else {"logits"})
    assert max(differences.values()) < 1e-5


def test_the_beam_head_has_no_class_in_transformers(tmp_path):
    head = TaskHeadConfig("question_answering", squad_head="beam")
    with pytest.raises(UserError, match=r"squad_head=beam.*--squad_head=plain"):
        hugging_face.write(
            random_weights(TINY, "none", head=head), str(tmp_path)
        )


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
    """From run to folder and back. An infinite threshold answers all."""
    weights = random_weights(TINY, "none", head=HEADS[kind], settings=settings)
    run, folder, back = (str(tmp_path / name) for name in ("run", "hf", "back"))
    convert.write_run(weights, run, run)
    assert read_weights(run).settings == settings

    convert.convert(ConvertConfig(from_=run, to=folder))
    convert.convert(ConvertConfig(from_=folder, to=back))

    read = read_weights(back)
    assert_equal(read, weights)
    assert (read.head, read.settings) == (weights.head, settings)
    text = (tmp_path / "hf" / "config.json").read_text()
    # Infinity is not JSON.
    stored = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    stored["albert_tf"].pop("null_threshold", 0)
    assert stored["albert_tf"].items() <= settings.items()
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| max_seq_length |" in card
    if kind == "question_answering":
        threshold = settings["null_threshold"]
        value = threshold if threshold < math.inf else "none: every question"
        assert f"| null_threshold | {value}" in card
        config = load_config(back, FinetuningConfig)
        assert null_threshold(back, config) == threshold


QA = "question_answering"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        # Old versions of transformers store a pooler, which is not named.
        (
            "regression",
            {"architectures": ["AlbertForQuestionAnswering"]},
            r"albert/span/kernel is missing(?!.*albert\.pooler)",
        ),
        # Its logits are not those of a softmax.
        (
            "classification",
            {"problem_type": "multi_label_classification"},
            "problem_type must be single_label",
        ),
        (QA, {"albert_tf": {"doc_stride": 0}}, "config.json: doc_stride must"),
        (QA, {"albert_tf": {"max_seq_length": 8}}, "must be at most.*8 and 7"),
        (
            QA,
            {"albert_tf": {"max_qa_length": 8}},
            "settings among max_seq_length, doc_stride",
        ),
        (QA, {"albert_tf": [1]}, "must be an object with settings"),
    ],
)
def test_a_folder_with_a_wrong_config_is_refused(
    kind, changes, message, tmp_path
):
    weights = random_weights(TINY, "none", head=HEADS[kind])
    hugging_face.write(weights, str(tmp_path))
    change_config(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        hugging_face.read(str(tmp_path))


def test_the_number_of_choices_is_a_setting_of_the_conversion(tmp_path, caplog):
    """transformers does not store it."""
    head = HEADS["multiple_choice"]
    source = tmp_path / "hf"
    hugging_face.write(random_weights(TINY, "none", head=head), str(source))
    stored = json.loads((source / "config.json").read_text())
    del stored["num_choices"]
    (source / "config.json").write_text(json.dumps(stored))

    def num_choices(name, **settings):
        run = str(tmp_path / name)
        convert.convert(ConvertConfig(from_=str(source), to=run, **settings))
        return read_weights(run).head.num_choices

    assert num_choices("a") == 2
    assert "takes 2, unless a conversion sets --num_choices" in caplog.text
    assert num_choices("b", num_choices=5) == 5
    caplog.clear()
    change_config(source, num_choices=3)
    assert num_choices("c") == 3
    assert "--num_choices" not in caplog.text


def test_the_number_of_choices_is_refused_for_other_models(tmp_path):
    head = HEADS["classification"]
    hugging_face.write(random_weights(TINY, "none", head=head), str(tmp_path))
    with pytest.raises(UserError, match=r"num_choices must be omitted unless"):
        convert.convert(
            ConvertConfig(
                from_=str(tmp_path), to=str(tmp_path / "run"), num_choices=3
            )
        )
