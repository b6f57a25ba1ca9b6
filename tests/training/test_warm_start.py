"""Runs that start from the weights of another model."""

import collections
import dataclasses
import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from albert_tf.config import InitializationConfig
from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.weight_names import list_weights
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import preflight, warm_start
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.conversion import write_published
from tests.helpers.run_processes import RunProcesses
from tests.helpers.warm_starts import (
    PIECE_BIAS,
    PIECES,
    POSITIONS,
    WITHOUT_EFFECT,
    assert_same_values,
    find_train_records,
    is_moment,
    model_of,
    moments_and,
    other_config,
    pieces_of,
    report_of,
    values_of,
    weights_in,
    weights_of,
)

# --- a run that continues ---------------------------------------------------


def evaluation_of(run_dir):
    """Metrics of the run's last evaluation, without step and time."""
    *_, last = read_metrics(str(run_dir))
    assert last.pop("split") == "eval"
    del last["step"], last["evaluation_seconds"]
    return last


def test_a_run_starts_with_the_losses_of_the_model(
    source, tiny_records, tmp_path
):
    """Its evaluation equals that of the model, and its moments are zero."""
    for name, more in (
        ("fresh", {}),
        ("continued", {"init_checkpoint": str(source)}),
    ):
        train(
            tiny_run.make_config(
                tiny_records, tmp_path / name, **WITHOUT_EFFECT, **more
            )
        )
    expected = evaluation_of(source)
    assert evaluation_of(tmp_path / "continued") == expected
    assert evaluation_of(tmp_path / "fresh")["loss"] > expected["loss"] + 0.1

    before = values_of(source, 12)
    now = values_of(tmp_path / "continued", 0)
    assert_same_values(now, before, weights_in(before))
    assert now["step"] == 0
    assert not any(value.any() for n, value in now.items() if is_moment(n))
    assert any(value.any() for n, value in before.items() if is_moment(n))

    report = report_of(tmp_path / "continued")
    start = read_events(str(tmp_path / "continued"))[0]
    assert (start["event"], start["warm_start"]) == ("start", report)
    assert report["step"] == 12
    assert report["vocabularies_known"]
    assert report["pieces"]["kept"] == tiny_run.MODEL.vocab_size
    assert not report["initialized"]
    assert not report["unused"]
    assert "warm_start" not in read_events(str(tmp_path / "fresh"))[0]
    assert not (tmp_path / "fresh/warm_start.json").exists()


def test_a_run_with_a_checkpoint_resumes_from_it(
    source, tiny_records, tmp_path
):
    """Even if the model no longer exists. Without one, it starts over."""
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
    expected, report = values_of(run_dir, 4), report_of(run_dir)
    # As if it had been killed before its first checkpoint.
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "metrics.jsonl").unlink()
    train(config)
    assert_same_values(values_of(run_dir, 4), expected, set(expected))
    shutil.rmtree(run_dir / "checkpoints/step-00000004")
    shutil.rmtree(model)
    train(config)
    assert_same_values(values_of(run_dir, 4), expected, set(expected))
    starts = [
        (event["event"], event["step"], "warm_start" in event)
        for event in read_events(str(run_dir))
        if event["event"] in ("start", "resume")
    ]
    assert starts == [*[("start", 0, True)] * 2, ("resume", 2, False)]
    assert report_of(run_dir) == report


def test_a_new_attempt_removes_the_report_of_the_last(plan_for, tmp_path):
    planned = plan_for(tiny_run.MODEL, weights_of(tiny_run.MODEL))
    warm_start.write_report(str(tmp_path), planned)
    assert report_of(tmp_path) == planned.report
    warm_start.write_report(str(tmp_path), None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_workers_start_with_equal_weights(source, tiny_records, tmp_path):
    """The first step of two workers equals that of one device."""

    def config(name, strategy):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / name,
            init_checkpoint=str(source),
            num_train_steps=1,
            num_warmup_steps=0,
            dropout_schedule="0:0.0",
            strategy=strategy,
            eval_input_file=(),
        )

    train(config("alone", "one_device"))
    processes = RunProcesses(
        config("workers", "multi_worker"), tmp_path, workers=2
    )
    assert processes.wait() == [0, 0], processes.log()
    initial, alone = (values_of(tmp_path / "alone", step) for step in (0, 1))
    assert_same_values(values_of(tmp_path / "workers", 0), initial, initial)
    both = values_of(tmp_path / "workers", 1)
    assert any((alone[n] != initial[n]).any() for n in weights_in(alone))
    for name in weights_in(alone):
        np.testing.assert_allclose(both[name], alone[name], atol=1e-5)


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
    # Below the loss of uniform predictions, after 12 updates.
    guess = math.log(tiny_run.MODEL.vocab_size) + math.log(2)
    assert float(loss) < guess - 0.2
    assert not (tmp_path / "run").exists()

    wrong = tiny_run.make_config(
        tiny_records, tmp_path / "run", init_checkpoint=str(tmp_path / "none")
    )
    assert preflight.run(wrong) == 1
    table = capsys.readouterr().out
    assert re.search(r"FAIL +initial weights .*/none", table)
    assert "needs: initial weights" in table


@pytest.mark.parametrize("write", [hugging_face.write, write_published])
def test_a_run_starts_from_models_in_formats_of_other_projects(
    source, tiny_records, tmp_path, write
):
    there = tmp_path / "theirs"
    write(formats.read_weights(str(source)), there)
    train(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            init_checkpoint=str(there),
            eval_input_file=(),
            **WITHOUT_EFFECT,
        )
    )
    before, now = values_of(source, 12), values_of(tmp_path / "run", 0)
    assert_same_values(now, before, weights_in(before))


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


# --- other vocabularies -----------------------------------------------------


@pytest.fixture(scope="module")
def continued(source, other_records, tmp_path_factory):
    """A run that starts from `source` and trains on `other_records`."""
    run_dir = tmp_path_factory.mktemp("continued")
    train(
        other_config(
            other_records,
            run_dir,
            init_checkpoint=str(source),
            init_optimizer_state=True,
        )
    )
    return run_dir


def test_rows_of_pieces_in_both_vocabularies_are_kept(
    source, continued, other_records, tmp_path
):
    """New pieces start at the mean of these, plus the values of a new run."""
    train(other_config(other_records, tmp_path))
    old, initial = values_of(source, 12), values_of(tmp_path, 0)
    now = values_of(continued, 0)
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
    report = report_of(continued)["pieces"]
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


def test_new_values_are_a_function_of_the_seed(
    source, continued, other_records, tmp_path
):
    """Another seed changes the embeddings of new pieces, and nothing else."""
    train(
        other_config(
            other_records,
            tmp_path,
            init_checkpoint=str(source),
            init_optimizer_state=True,
            seed=2,
        )
    )
    one, other = values_of(continued, 0), values_of(tmp_path, 0)
    pieces_there = set(pieces_of(source))
    pieces_here = pieces_of(other_records / "train")
    kept = [piece in pieces_there for piece in pieces_here]
    assert_same_values(other, one, set(one) - {PIECES})
    differs = (other[PIECES] != one[PIECES]).any(axis=1)
    np.testing.assert_array_equal(differs, np.logical_not(kept))


def test_the_same_pieces_in_another_file_are_the_same(tiny_records, tmp_path):
    """The file has a field that SentencePiece does not know."""
    content = (tiny_records / "train/spiece.model").read_bytes()
    # Field 1000, a number.
    (tmp_path / "spiece.model").write_bytes(content + b"\xc0\x3e\x01")
    assert pieces_of(tmp_path) == pieces_of(tiny_records / "train")

    config = tiny_run.make_config(tiny_records, tmp_path, init_checkpoint="a")
    planned = warm_start.plan(
        config,
        find_train_records(tiny_records, config),
        weights_of(config.model, tmp_path / "spiece.model"),
    )
    assert planned.kept_pieces is None
    assert planned.report["pieces"]["new"] == 0


@pytest.fixture
def records_without_metadata(tiny_records, tmp_path):
    """Records without metadata, as google-research/albert writes them."""
    shutil.copytree(tiny_records / "train", tmp_path / "copy/train")
    (tmp_path / "copy/train/metadata.json").unlink()
    (tmp_path / "copy/train/spiece.model").unlink()
    return tmp_path / "copy"


@pytest.mark.parametrize("unknown", ["model", "records"])
def test_an_unknown_vocabulary_of_the_same_size_gives_a_warning(
    tiny_records, records_without_metadata, tmp_path, caplog, unknown
):
    records, vocabulary, whose = tiny_records, "", "VOCABULARY OF a IS NOT"
    remedy = "--init_vocabulary"
    if unknown == "records":
        records, whose = records_without_metadata, "OF the records IS NOT"
        vocabulary = tiny_records / "train/spiece.model"
        remedy = "data_prep.build_tfrecords"
    config = tiny_run.make_config(records, tmp_path, init_checkpoint="a")
    found = find_train_records(records, config)
    caplog.clear()
    planned = warm_start.plan(
        config, found, weights_of(config.model, vocabulary)
    )
    assert planned.kept_pieces is None
    assert not planned.report["vocabularies_known"]
    (warning,) = caplog.records
    assert whose in warning.getMessage()
    assert "400 pieces" in warning.getMessage()
    assert remedy in warning.getMessage()


@pytest.fixture
def vocabularies(tiny_records, other_records, tmp_path):
    """Vocabulary files by name."""
    ours = tiny_records / "train/spiece.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(ours.read_bytes())
    first, second = model.pieces[100:102]
    first.piece, second.piece = second.piece, first.piece
    (tmp_path / "swapped.model").write_bytes(model.SerializeToString())
    shutil.copy(ours, tmp_path / "same.model")
    return {
        "": "",
        "ours": ours,
        "same": tmp_path / "same.model",
        "swapped": tmp_path / "swapped.model",
        "300 pieces": other_records / "train/spiece.model",
    }


@pytest.fixture
def mixed_records(other_records, tiny_records, tmp_path):
    shutil.copytree(other_records, tmp_path / "mixed")
    shutil.copy(tiny_records / "train/spiece.model", tmp_path / "mixed/train")
    return tmp_path / "mixed"


# By name: records, the setting, and vocabulary and number of pieces of the
# model; words of the refusal, or whether the run has other pieces.
VOCABULARIES = {
    "unknown, of another size": (
        *("other_records", "", "", 400),
        "400 pieces in the model and 300 in .* --init_vocabulary",
    ),
    "given": ("other_records", "ours", "", 400, True),
    "of the records unknown, of another size": (
        *("records_without_metadata", "300 pieces", "", 300),
        "300 pieces in the model and 400 in .* data_prep",
    ),
    "not of the model": (
        *("tiny_records", "300 pieces", "", 400),
        "300 pieces, and 400 in the model",
    ),
    # With as many pieces, as if the vocabulary of the records were given.
    "another one next to the model": (
        *("tiny_records", "ours", "swapped", 400),
        r"spiece\.model, and .*swapped\.model",
    ),
    "the same one next to the model": (
        *("tiny_records", "ours", "same", 400),
        False,
    ),
    "another one next to the records": (
        *("mixed_records", "", "ours", 400),
        "vocabulary of the records next to it",
    ),
}


@pytest.mark.parametrize(
    ("records", "given", "own", "size", "expected"),
    VOCABULARIES.values(),
    ids=VOCABULARIES,
)
def test_vocabularies_that_contradict_each_other_are_refused(
    request, vocabularies, tmp_path, records, given, own, size, expected
):
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
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            warm_start.plan(config, found, weights)
        return
    kept = warm_start.plan(config, found, weights).kept_pieces
    assert 20 < len(kept.run_ids) < 280 if expected else kept is None


# --- other layers, positions and heads --------------------------------------


def applied(planned, here, objective="sop"):
    """The values that the plan assigns to variables that were all 9."""
    variables = {}
    for weight in list_weights(here, objective):
        for path in moments_and(weight.path):
            variables[path] = tf.Variable(np.full(weight.shape, 9, np.float32))
    planned.apply(variables)
    return {path: v.numpy() for path, v in variables.items()}


# The models there and here; for each group or layer here, the number of that
# which it starts from, by hand.
DEPTHS = {
    "a group that all layers share": (
        *(model_of(6), model_of(12)),
        {"group": [0]},
    ),
    "twice as many groups": (
        *(model_of(6, 6), model_of(12, 12)),
        {"group": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]},
    ),
    "as many groups, of layers that do not divide": (
        *(model_of(3, 2), model_of(4, 2)),
        {"group": [0, 1]},
    ),
    "fewer groups": (
        *(model_of(6, 6), model_of(3, 3)),
        {"group": [0, 2, 4]},
    ),
    "groups of one that all layers shared": (
        *(model_of(6), model_of(12, 3)),
        {"group": [0, 0, 0]},
    ),
    "layers that do not share": (
        *(model_of(2, sharing="none"), model_of(4, sharing="none")),
        {"layer": [0, 0, 1, 1]},
    ),
    "layers that do not share, with --init_from_group0": (
        *(model_of(2, sharing="none"), model_of(4, sharing="none")),
        *({"layer": [0, 1, 0, 0]}, True),
    ),
    "no divisor": (
        *(model_of(3, 3), model_of(4, 4)),
        {"group": [0, 0, 1, 2]},
    ),
}


@pytest.mark.parametrize("case", DEPTHS)
def test_layers_start_from_layers_of_the_same_relative_depth(plan_for, case):
    there, here, expected, *from_group0 = DEPTHS[case]
    ((owner, taken),) = expected.items()
    weights = weights_of(there, slots=True)
    planned = plan_for(
        here,
        weights,
        init_from_group0=bool(from_group0),
        init_optimizer_state=True,
    )
    values = applied(planned, here)
    old = {**weights.values, **weights.slots}
    seen = set()
    for path, value in values.items():
        match = re.search(rf"/{owner}_(\d+)_", path)
        source = path
        if match:
            number = int(match[1])
            seen.add(number)
            source = path.replace(match[0], f"/{owner}_{taken[number]}_")
        np.testing.assert_array_equal(value, old[source], path)
    assert seen == set(range(len(taken)))


def test_unshared_layers_start_from_their_former_group(plan_for):
    """Feed-forward layers take those of their group; attention stays shared."""
    there, here = model_of(12, 3), model_of(12, sharing="attention")
    weights = weights_of(there)
    planned = plan_for(here, weights)
    values = applied(planned, here)
    kernel = "albert/encoder/{}_inner_group_0_{}/output/kernel"
    for layer in range(12):
        np.testing.assert_array_equal(
            values[kernel.format(f"layer_{layer}", "ffn")],
            weights.values[kernel.format(f"group_{layer // 4}", "ffn")],
        )
    np.testing.assert_array_equal(
        values[kernel.format("group_0", "attention")],
        weights.values[kernel.format("group_0", "attention")],
    )
    taken = planned.report["layers"]["taken_from"]
    assert taken["layer_11_inner_group_0_ffn"] == "group_2_inner_group_0_ffn"


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (model_of(4, 2), model_of(4, 4)),
        (model_of(4, 1), model_of(4, 2)),
        (model_of(4, 2, inner_group_num=2), model_of(4, 4, inner_group_num=2)),
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


@pytest.mark.parametrize("number", [24, 32, 40, 80])
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
    for weight in list_weights(tiny_run.MODEL, here):
        for path in moments_and(weight.path):
            untouched = (values[path] == 9).all()
            assert untouched == (weight.path.split("/")[1] in fresh), path


def test_requested_moments_must_exist(plan_for):
    weights = weights_of(tiny_run.MODEL)
    with pytest.raises(UserError, match="init_optimizer_state needs"):
        plan_for(tiny_run.MODEL, weights, init_optimizer_state=True)
    assert plan_for(tiny_run.MODEL, weights)


def test_the_description_names_everything_that_changed(plan_for):
    weights = weights_of(model_of(4, 2), objective="none")
    here = model_of(8, 4, max_position_embeddings=64)
    lines = plan_for(here, weights).describe()
    text = "; ".join(lines)
    assert "64 positions from 32" in text
    assert "8 layers from 4" in text
    assert (
        "group_1 from group_0, group_2 from group_1, group_3 from group_1"
        in text
    )
    assert "missing in the checkpoint and newly initialised" in text
    assert "albert/pooler, albert/sentence" in text
    same = weights_of(tiny_run.MODEL)
    assert plan_for(tiny_run.MODEL, same).describe() == [
        "starting from the weights of a"
    ]
