"""Runs that start from the weights of another model."""

import collections
import dataclasses
import gzip
import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from albert_tf.config import (
    InitializationConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_records
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.weight_names import MOMENTS, ModelWeights, list_weights
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import preflight, warm_start
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from albert_tf.training.train_step import make_state
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig
from tests.helpers import tiny_run
from tests.helpers.conversion import write_published
from tests.helpers.run_processes import read_variables
from tests.helpers.shared_directory import build_once

PIECES = "albert/embeddings/word_embeddings"
PIECE_BIAS = "albert/masked_lm/output_bias"
POSITIONS = "albert/embeddings/position_embeddings"
LOSS_OF_A_GUESS = math.log(tiny_run.MODEL.vocab_size) + math.log(2)


class Started:
    """The variables of a new run before and after its warm start."""

    def __init__(self, config):
        objective = Pretraining(config)
        state = make_state(config, objective)
        self.initial = {n: v.numpy() for n, v in state.variables().items()}
        planned = objective.initial_weights(objective.find_training_data())
        planned.apply(state.variables())
        self.values = {n: v.numpy() for n, v in state.variables().items()}
        self.report = planned.report


def is_moment(path):
    return path.endswith(("/m", "/v"))


def assert_same_values(some, others, paths):
    assert paths
    for path in paths:
        np.testing.assert_array_equal(some[path], others[path], path)


def weights_in(values):
    return {path for path in values if not is_moment(path)} - {"step"}


def report_of(run_dir):
    return json.loads((run_dir / "warm_start.json").read_text())


def pieces_of(directory):
    model = sentencepiece.SentencePieceProcessor(
        model_file=str(directory / "spiece.model")
    )
    return [model.id_to_piece(i) for i in range(model.vocab_size())]


def moments_and(path):
    return [path, *(f"{path}/{moment}" for moment in MOMENTS)]


def find_train_records(records, config):
    return find_records({"input_file": [f"{records}/train/*.tfrecord"]}, config)


def weights_of(config, vocabulary="", objective="sop", slots=False):
    """A model whose values are all different."""
    generator = np.random.default_rng(7)

    def draw(shape):
        return generator.normal(size=shape).astype(np.float32)

    listed = list_weights(config, objective)
    return ModelWeights(
        config,
        objective,
        {w.path: draw(w.shape) for w in listed},
        slots={
            f"{w.path}/{moment}": draw(w.shape)
            for w in listed
            for moment in MOMENTS
            if slots
        },
        vocabulary=str(vocabulary),
        source="elsewhere",
    )


def model_of(layers, groups=1, sharing="all", **changes):
    return dataclasses.replace(
        tiny_run.MODEL,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        parameter_sharing=sharing,
        **changes,
    )


@pytest.fixture(scope="session")
def other_records(tmp_path_factory):
    """Records of another text, with a vocabulary of 300 pieces.

    All test workers share them, like `source`.
    """
    directory = build_once(tmp_path_factory, "other", build_other_records)
    return directory / "records"


def build_other_records(directory):
    text = directory / "text.txt"
    with gzip.open(tiny_run.CORPUS, "rt", encoding="utf-8") as lines:
        text.write_text("".join(itertools.islice(lines, 9000, 9300)))
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(str(text),),
            model_prefix=str(directory / "spm"),
            vocab_size=300,
        )
    )
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(text),),
            output_dir=str(directory / "records"),
            spm_model_file=str(directory / "spm.model"),
            dupe_factor=1,
            num_shards=1,
            num_workers=1,
            **tiny_run.LENGTHS,
        )
    )


@pytest.fixture
def plan_for(tiny_records, tmp_path):
    """A function that plans the warm start of a run with a given model."""

    def plan_for(here, weights, objective="sop", **initialization):
        config = tiny_run.make_config(tiny_records, tmp_path)
        found = find_train_records(tiny_records, config)
        config = PretrainingConfig(
            model=here,
            data=dataclasses.replace(config.data, max_seq_length=16),
            training=TrainingConfig(sentence_objective=objective),
            initialization=InitializationConfig(
                init_checkpoint="a", **initialization
            ),
        )
        weights = dataclasses.replace(
            weights, vocabulary=str(tiny_records / "train/spiece.model")
        )
        return warm_start.plan(config, found, weights)

    return plan_for


# --- a run that continues ---------------------------------------------------


def test_a_run_starts_with_the_losses_of_the_model(
    source, tiny_records, tmp_path
):
    """Its evaluation equals that of the model, and its moments are zero."""
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        init_checkpoint=str(source),
        # The run learns nothing: its evaluation is of the initial weights.
        num_train_steps=1,
        num_warmup_steps=0,
        learning_rate=0.0,
        dropout_schedule="0:0.0",
    )
    assert train(config) == 0
    found, expected = (read_metrics(str(d))[-1] for d in (tmp_path, source))
    for name in ("loss", "masked_lm_accuracy", "sentence_order_loss"):
        assert found[name] == expected[name]
    assert expected["loss"] < LOSS_OF_A_GUESS - 0.2

    before, now = read_variables(source, 12), read_variables(tmp_path, 0)
    assert_same_values(now, before, weights_in(before))
    assert now["step"] == 0
    assert not any(value.any() for n, value in now.items() if is_moment(n))
    assert any(value.any() for n, value in before.items() if is_moment(n))

    report = report_of(tmp_path)
    start = read_events(str(tmp_path))[0]
    assert (start["event"], start["warm_start"]) == ("start", report)
    assert report["step"] == 12
    assert report["vocabularies_known"]
    assert report["pieces"]["kept"] == tiny_run.MODEL.vocab_size
    assert not report["initialized"]
    assert not report["unused"]
    assert "warm_start" not in read_events(str(source))[0]
    assert not (source / "warm_start.json").exists()


def test_a_run_with_a_checkpoint_resumes_from_it(
    source, tiny_records, tmp_path
):
    """Even if the model no longer exists."""
    model, run_dir = tmp_path / "model", tmp_path / "run"
    shutil.copytree(source, model)
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        init_checkpoint=str(model),
        num_train_steps=4,
        save_checkpoints_steps=2,
        eval_input_file=(),
    )
    train(config)
    expected, report = read_variables(run_dir, 4), report_of(run_dir)
    shutil.rmtree(run_dir / "checkpoints/step-00000004")
    shutil.rmtree(model)
    train(config)
    assert_same_values(read_variables(run_dir, 4), expected, set(expected))
    starts = [
        (event["event"], event["step"], "warm_start" in event)
        for event in read_events(str(run_dir))
        if event["event"] in ("start", "resume")
    ]
    assert starts == [("start", 0, True), ("resume", 2, False)]
    assert report_of(run_dir) == report


def test_a_new_attempt_removes_the_report_of_the_last(plan_for, tmp_path):
    planned = plan_for(tiny_run.MODEL, weights_of(tiny_run.MODEL))
    warm_start.write_report(str(tmp_path), planned)
    assert report_of(tmp_path) == planned.report
    warm_start.write_report(str(tmp_path), None)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tries_the_weights(source, tiny_records, tmp_path, capsys):
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", init_checkpoint=str(source)
    )
    assert preflight.run(config) == 0
    table = capsys.readouterr().out
    assert re.search(
        rf"ok +initial weights +starting .*{source}, step 12", table
    )
    (loss,) = re.findall(r"ok +loss +(\S+) at step 0\n", table)
    assert float(loss) < LOSS_OF_A_GUESS - 0.2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("write", [hugging_face.write, write_published])
def test_a_run_starts_from_models_in_formats_of_other_projects(
    source, tiny_records, tmp_path, write
):
    write(formats.read_weights(str(source)), tmp_path / "theirs")
    started = Started(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            init_checkpoint=str(tmp_path / "theirs"),
        )
    )
    before = read_variables(source, 12)
    assert_same_values(started.values, before, weights_in(before))


# --- what does not fit ------------------------------------------------------

OTHER = {
    "embedding_size": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "relu",
    "type_vocab_size": 3,
}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_another_architecture_is_refused_with_both_values(
    source, tiny_records, tmp_path, name, value
):
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records, run_dir, init_checkpoint=str(source), **{name: value}
    )
    here = getattr(tiny_run.MODEL, name)
    with pytest.raises(UserError, match=f"{name} {here!r} and {value!r}"):
        train(config)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    "name", ["init_vocabulary", "init_from_group0", "init_optimizer_state"]
)
def test_settings_of_a_warm_start_need_a_checkpoint(name):
    value = "spiece.model" if name == "init_vocabulary" else True
    with pytest.raises(UserError, match=f"{name} needs --init_checkpoint"):
        InitializationConfig(**{name: value})
    InitializationConfig(init_checkpoint="a", **{name: value})


def test_muon_passes_on_its_moments(tiny_records, tmp_path):
    """It has no second moment of its kernels; AdamW would need one."""
    run_dir, muon = tmp_path / "muon", {"optimizer": "muon"}
    train(
        tiny_run.make_config(tiny_records, run_dir, num_train_steps=2, **muon)
    )
    start = {"init_checkpoint": str(run_dir), "init_optimizer_state": True}
    new = [tiny_records, tmp_path / "new"]
    started = Started(tiny_run.make_config(*new, **start, **muon))
    old = read_variables(run_dir)
    assert len([n for n in old if n.endswith("/kernel/m")]) > len(
        [n for n in old if n.endswith("/kernel/v")]
    )
    assert_same_values(started.values, old, set(old) - {"step"})
    with pytest.raises(UserError, match="Muon's, one for each kernel"):
        Started(tiny_run.make_config(*new, **start, optimizer="adamw"))


# --- other vocabularies -----------------------------------------------------


def other_start(records, source, run_dir, **changes):
    """The start of a run on `records` from the weights and moments of one."""
    return Started(
        tiny_run.make_config(
            records,
            run_dir,
            vocab_size=300,
            eval_input_file=(),
            init_checkpoint=str(source),
            init_optimizer_state=True,
            **changes,
        )
    )


def test_rows_of_pieces_in_both_vocabularies_are_kept(
    source, other_records, tmp_path
):
    """New pieces start at the mean of these, plus the values of a new run.

    Another seed changes the embeddings of new pieces, and nothing else.
    """
    started = other_start(other_records, source, tmp_path)
    old, initial, now = read_variables(source), started.initial, started.values
    pieces_there = pieces_of(source)
    pieces_here = pieces_of(other_records / "train")
    kept = [p for p in pieces_here if p in set(pieces_there)]
    assert 20 < len(kept) < 280
    for path in (PIECES, PIECE_BIAS):
        mean = np.mean([old[path][pieces_there.index(p)] for p in kept], axis=0)
        for i, piece in enumerate(pieces_here):
            if piece in kept:
                there = pieces_there.index(piece)
                expected = {p: old[p][there] for p in moments_and(path)}
            else:
                expected = dict.fromkeys(moments_and(path), 0.0)
                expected[path] = mean + initial[path][i]
            for name, value in expected.items():
                np.testing.assert_allclose(
                    now[name][i], value, atol=1e-7, err_msg=f"{name} {piece}"
                )
    assert not initial[PIECE_BIAS].any()
    others = set(old) - {*moments_and(PIECES), *moments_and(PIECE_BIAS), "step"}
    assert_same_values(now, old, others)

    counts = collections.Counter()
    for record in tf.data.TFRecordDataset(
        [str(p) for p in other_records.glob("train/*.tfrecord")]
    ).as_numpy_iterator():
        example = tf.train.Example.FromString(record)
        ids = example.features.feature["input_ids"].int64_list.value
        counts.update(pieces_here[i] for i in ids if i >= 5)
    report = dict(started.report["pieces"])
    share = report.pop("kept_share_of_records")
    assert report == {
        "kept": len(kept),
        "new": 300 - len(kept),
        "dropped": 400 - len(kept),
    }
    assert 0.3 < share < 1
    assert share == pytest.approx(
        sum(counts[p] for p in kept) / counts.total(), rel=1e-6
    )

    other = other_start(other_records, source, tmp_path, seed=2).values
    assert_same_values(other, now, set(now) - {PIECES})
    differs = (other[PIECES] != now[PIECES]).any(axis=1)
    is_new = [piece not in kept for piece in pieces_here]
    np.testing.assert_array_equal(differs, is_new)


@pytest.fixture
def records_without_metadata(tiny_records, tmp_path):
    """Records without metadata, as google-research/albert writes them."""
    shutil.copytree(tiny_records / "train", tmp_path / "copy/train")
    (tmp_path / "copy/train/metadata.json").unlink()
    (tmp_path / "copy/train/spiece.model").unlink()
    return tmp_path / "copy"


@pytest.fixture
def mixed_records(other_records, tiny_records, tmp_path):
    shutil.copytree(other_records, tmp_path / "mixed")
    shutil.copy(tiny_records / "train/spiece.model", tmp_path / "mixed/train")
    return tmp_path / "mixed"


@pytest.fixture
def vocabularies(tiny_records, other_records, tmp_path):
    """Vocabulary files by name."""
    ours = tiny_records / "train/spiece.model"
    # With field 1000, a number that SentencePiece does not know.
    same = tmp_path / "same.model"
    same.write_bytes(ours.read_bytes() + b"\xc0\x3e\x01")
    model = sentencepiece_model_pb2.ModelProto.FromString(ours.read_bytes())
    first, second = model.pieces[100:102]
    first.piece, second.piece = second.piece, first.piece
    (tmp_path / "swapped.model").write_bytes(model.SerializeToString())
    return {
        "": "",
        "ours": ours,
        "same": same,
        "swapped": tmp_path / "swapped.model",
        "300 pieces": other_records / "train/spiece.model",
    }


# By name: records, the setting, and vocabulary and number of pieces of the
# model; whether the run has the same pieces, other ones, warns or is refused,
# and words of its warning or refusal.
VOCABULARIES = {
    "unknown": (
        *("tiny_records", "", "", 400, "warns"),
        "VOCABULARY OF a IS NOT.* 400 pieces.* --init_vocabulary",
    ),
    "of the records unknown": (
        *("records_without_metadata", "", "ours", 400, "warns"),
        "OF the records IS NOT.* 400 pieces.* data_prep.build_tfrecords",
    ),
    "unknown, of another size": (
        *("other_records", "", "", 400, "is refused"),
        "400 pieces in the model and 300 in .* --init_vocabulary",
    ),
    "of the records unknown, of another size": (
        *("records_without_metadata", "300 pieces", "", 300, "is refused"),
        "300 pieces in the model and 400 in .* data_prep",
    ),
    "given": ("other_records", "ours", "", 400, "others", ""),
    "not of the model": (
        *("tiny_records", "300 pieces", "", 400, "is refused"),
        "300 pieces, and 400 in the model",
    ),
    # With as many pieces, as if the vocabulary of the records were given.
    "another one next to the model": (
        *("tiny_records", "ours", "swapped", 400, "is refused"),
        r"spiece\.model, and .*swapped\.model",
    ),
    "the same one next to the model": (
        *("tiny_records", "ours", "same", 400, "same", ""),
    ),
    "the same one of the model alone": (
        *("tiny_records", "", "same", 400, "same", ""),
    ),
    "another one next to the records": (
        *("mixed_records", "", "ours", 400, "is refused"),
        "vocabulary of the records next to it",
    ),
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_vocabularies_are_compared_by_their_pieces(
    request, vocabularies, tmp_path, caplog, case
):
    records, given, own, size, outcome, words = VOCABULARIES[case]
    found = request.getfixturevalue(records)
    config = tiny_run.make_config(
        found,
        tmp_path,
        init_checkpoint="a",
        init_vocabulary=str(vocabularies[given]),
        vocab_size=300 if records[0] in "om" else 400,
    )
    found = find_train_records(found, config)
    model = dataclasses.replace(tiny_run.MODEL, vocab_size=size)
    weights = weights_of(model, vocabularies[own])
    caplog.clear()
    if outcome == "is refused":
        with pytest.raises(UserError, match=words):
            warm_start.plan(config, found, weights)
        return
    planned = warm_start.plan(config, found, weights)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (outcome == "warns")
    assert all(re.search(words, warning) for warning in warnings)
    assert planned.report["vocabularies_known"] == (outcome != "warns")
    if outcome == "others":
        assert 20 < len(planned.kept_pieces.run_ids) < 280
    else:
        assert planned.kept_pieces is None
        assert planned.report["pieces"]["new"] == 0


# --- other layers, positions and heads --------------------------------------


def applied(planned, here, objective="sop"):
    """The values that the plan assigns to variables that were all 9."""
    variables = {}
    for weight in list_weights(here, objective):
        for path in moments_and(weight.path):
            variables[path] = tf.Variable(np.full(weight.shape, 9, np.float32))
    planned.apply(variables)
    return {path: v.numpy() for path, v in variables.items()}


# The models there and here; for each group or layer here, the one that it
# starts from, by hand.
DEPTHS = {
    "a group that all layers share": (
        *(model_of(6), model_of(12)),
        {"group": ["group_0"]},
    ),
    "twice as many groups": (
        *(model_of(6, 6), model_of(12, 12)),
        {"group": [f"group_{n // 2}" for n in range(12)]},
    ),
    "fewer groups": (
        *(model_of(6, 6), model_of(3, 3)),
        {"group": ["group_0", "group_2", "group_4"]},
    ),
    "no divisor": (
        *(model_of(3, 3), model_of(4, 4)),
        {"group": ["group_0", "group_0", "group_1", "group_2"]},
    ),
    "layers that do not share": (
        *(model_of(2, sharing="none"), model_of(4, sharing="none")),
        {"layer": ["layer_0", "layer_0", "layer_1", "layer_1"]},
    ),
    # Feed-forward layers take those of their group; attention stays shared.
    "layers that shared": (
        *(model_of(12, 3), model_of(12, sharing="attention")),
        {"layer": [f"group_{n // 4}" for n in range(12)], "group": ["group_0"]},
    ),
}


@pytest.mark.parametrize("case", DEPTHS)
def test_layers_start_from_layers_of_the_same_relative_depth(plan_for, case):
    there, here, taken = DEPTHS[case]
    weights = weights_of(there, slots=True)
    planned = plan_for(here, weights, init_optimizer_state=True)
    old = {**weights.values, **weights.slots}
    seen, others = set(), {}
    for path, value in applied(planned, here).items():
        source = path
        if match := re.search(r"/((group|layer)_(\d+))(_\w+)/", path):
            name, owner, number, rest = match.groups()
            source_name = taken[owner][int(number)]
            source = path.replace(name, source_name)
            seen.add(name)
            if name != source_name:
                others[name + rest] = source_name + rest
        np.testing.assert_array_equal(value, old[source], path)
    assert len(seen) == sum(map(len, taken.values()))
    assert planned.report["layers"]["taken_from"] == others
    described = "; ".join(planned.describe())
    for part, source_part in others.items():
        names = (name.partition("_inner")[0] for name in (part, source_part))
        assert " from ".join(names) in described


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (model_of(4, 2), model_of(4, 4)),
        (model_of(4, 2), model_of(4, 4, inner_group_num=2)),
        (model_of(4, 4, inner_group_num=2), model_of(4, 4)),
    ],
)
def test_init_from_group0_matches_google_research(plan_for, there, here):
    """Its rule, on its names: the same name, or else group 0."""
    weights = weights_of(there)
    planned = plan_for(here, weights, init_from_group0=True)
    values = applied(planned, here)
    published = {
        w.google_albert: weights.values[w.path] for w in list_weights(there)
    }
    fresh = set()
    for weight in list_weights(here):
        name = weight.google_albert
        if name not in published:
            name = re.sub(r"/group_\d+/", "/group_0/", name)
        if name in published:
            np.testing.assert_array_equal(
                values[weight.path], published[name], weight.path
            )
        else:
            fresh.add(weight.path)
            assert (values[weight.path] == 9).all()
    assert set(planned.report["initialized"]) == fresh
    assert bool(fresh) == (here.inner_group_num > there.inner_group_num)
    assert all("inner_group_1" in path for path in planned.report["unused"])
    assert bool(planned.report["unused"]) == (
        here.inner_group_num < there.inner_group_num
    )


@pytest.mark.parametrize("number", [24, 80])
def test_new_positions_repeat_the_old_ones(plan_for, number):
    """Their moments are zero; surplus positions are dropped."""
    here = model_of(2, max_position_embeddings=number)
    weights = weights_of(tiny_run.MODEL, slots=True)
    planned = plan_for(here, weights, init_optimizer_state=True)
    values = applied(planned, here)
    for position in range(number):
        np.testing.assert_array_equal(
            values[POSITIONS][position],
            weights.values[POSITIONS][position % 32],
        )
        for path in (f"{POSITIONS}/m", f"{POSITIONS}/v"):
            expected = weights.slots[path][position] if position < 32 else 0
            np.testing.assert_array_equal(values[path][position], expected)
    assert planned.report["positions"] == {"here": number, "there": 32}
    assert any(f"{number} positions from 32" in x for x in planned.describe())


@pytest.mark.parametrize(
    ("here", "there", "fresh", "unused"),
    [
        ("sop", "sop", set(), set()),
        ("sop", "nsp", {"sentence"}, {"sentence"}),
        ("nsp", "sop", {"sentence"}, {"sentence"}),
        ("sop", "none", {"sentence", "pooler"}, set()),
        ("none", "sop", set(), {"sentence", "pooler"}),
        ("none", "none", set(), set()),
    ],
)
def test_a_head_for_another_task_is_newly_initialised(
    plan_for, here, there, fresh, unused
):
    weights = weights_of(tiny_run.MODEL, objective=there, slots=True)
    planned = plan_for(
        tiny_run.MODEL, weights, objective=here, init_optimizer_state=True
    )
    values = applied(planned, tiny_run.MODEL, here)
    initialized = {path.split("/")[1] for path in planned.report["initialized"]}
    assert initialized == fresh
    assert {path.split("/")[1] for path in planned.report["unused"]} == unused
    described = "; ".join(planned.describe())
    assert ("newly initialised: " in described) == bool(fresh)
    assert ("not used: " in described) == bool(unused)
    for weight in list_weights(tiny_run.MODEL, here):
        for path in moments_and(weight.path):
            untouched = (values[path] == 9).all()
            assert untouched == (weight.path.split("/")[1] in fresh), path
