"""Runs that start from the weights of another model."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from albert_tf.config import InitializationConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_records
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.weight_names import MOMENTS, ModelWeights, list_weights
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import preflight, warm_start
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from albert_tf.training.train_step import make_state
from tests.helpers import tiny_run
from tests.helpers.conversion import write_published
from tests.helpers.run_processes import read_variables

PIECES = "albert/embeddings/word_embeddings"
PIECE_BIAS = "albert/masked_lm/output_bias"
POSITIONS = "albert/embeddings/position_embeddings"
LOSS_OF_A_GUESS = math.log(tiny_run.MODEL.vocab_size) + math.log(2)


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


def moments_and(path):
    return [path, *(f"{path}/{moment}" for moment in MOMENTS)]


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


def plan(records, weights, run_dir="unused", **changes):
    """Plans the warm start of a run on `records`."""
    config = tiny_run.make_config(
        records, run_dir, **{"init_checkpoint": "a", **changes}
    )
    fitting = tiny_run.make_config(
        records, run_dir, vocab_size=config.model.vocab_size
    )
    found = find_records("input_file", config.data.input_file, fitting)
    return warm_start.plan(config, found, weights)


@pytest.fixture
def plan_for(tiny_records):
    """A function that plans the warm start of a run with a given model."""

    def plan_for(here, weights, objective="sop", **changes):
        vocabulary = str(tiny_records / "train/spiece.model")
        return plan(
            tiny_records,
            dataclasses.replace(weights, vocabulary=vocabulary),
            sentence_objective=objective,
            **dataclasses.asdict(here),
            **changes,
        )

    return plan_for


def applied(planned, here, objective="sop"):
    """The values that the plan assigns to variables that were all 9."""
    variables = {}
    for weight in list_weights(here, objective):
        for path in moments_and(weight.path):
            variables[path] = tf.Variable(np.full(weight.shape, 9, np.float32))
    planned.apply(variables)
    return {path: v.numpy() for path, v in variables.items()}


# --- a run that continues ---------------------------------------------------


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_run_starts_with_the_losses_of_the_model(
    source, tiny_records, tmp_path
):
    """Its evaluation equals that of the model, and its moments are zero. Its
    next start resumes it, even if the model no longer exists."""
    model, run_dir = tmp_path / "model", tmp_path / "run"
    shutil.copytree(source, model)
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        init_checkpoint=str(model),
        # The run learns nothing: its evaluation is of the initial weights.
        num_train_steps=1,
        num_warmup_steps=0,
        learning_rate=0.0,
        dropout_schedule="0:0.0",
    )
    assert train(config) == 0
    found, expected = (read_metrics(str(d))[-1] for d in (run_dir, source))
    for name in ("loss", "masked_lm_accuracy", "sentence_order_loss"):
        assert found[name] == expected[name]
    assert expected["loss"] < LOSS_OF_A_GUESS - 0.2

    before, now = read_variables(source, 12), read_variables(run_dir, 0)
    assert_same_values(now, before, weights_in(before))
    assert now["step"] == 0
    assert not any(value.any() for n, value in now.items() if is_moment(n))
    assert any(value.any() for n, value in before.items() if is_moment(n))

    report = report_of(run_dir)
    start = read_events(str(run_dir))[0]
    assert (start["event"], start["warm_start"]) == ("start", report)
    assert report["step"] == 12
    assert report["pieces"]["kept"] == tiny_run.MODEL.vocab_size
    assert not report["initialized"]
    assert not report["unused"]
    assert "warm_start" not in read_events(str(source))[0]
    assert not (source / "warm_start.json").exists()

    shutil.rmtree(model)
    longer = config.replace(num_train_steps=2, allow_config_change=True)
    assert train(longer) == 0
    starts = [
        (event["event"], event["step"], "warm_start" in event)
        for event in read_events(str(run_dir))
        if event["event"] in ("start", "resume")
    ]
    assert starts == [("start", 0, True), ("resume", 1, False)]
    assert report_of(run_dir) == report


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_dry_run_tries_the_weights(source, tiny_records, tmp_path, capsys):
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", init_checkpoint=str(source)
    )
    assert preflight.run(config) == 0
    table = capsys.readouterr().out
    assert re.search(
        rf"ok +run +a new run, weights: starting .*{source}, step 12", table
    )
    (loss,) = re.findall(r"ok +steps .*loss (\S+) at step 0;", table)
    assert float(loss) < LOSS_OF_A_GUESS - 0.2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("write", [hugging_face.write, write_published])
def test_a_run_starts_from_models_in_formats_of_other_projects(
    source, tiny_records, tmp_path, write
):
    write(formats.read_weights(str(source)), tmp_path / "theirs")
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        init_checkpoint=str(tmp_path / "theirs"),
    )
    objective = Pretraining(config)
    variables = make_state(config, objective).variables()
    objective.initial_weights(objective.find_training_data()).apply(variables)
    before = read_variables(source, 12)
    values = {name: v.numpy() for name, v in variables.items()}
    assert_same_values(values, before, weights_in(before))


# --- what does not fit ------------------------------------------------------


def test_another_architecture_is_refused_with_both_values(
    source, tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        init_checkpoint=str(source),
        intermediate_size=48,
        hidden_act="relu",
    )
    with pytest.raises(
        UserError, match="size 24 and 48; hidden_act 'gelu' and 'relu'"
    ):
        train(config)
    assert not (tmp_path / "run").exists()


def test_settings_of_a_warm_start_need_a_checkpoint():
    with pytest.raises(UserError, match="_state needs --init_checkpoint"):
        InitializationConfig(init_optimizer_state=True)


def test_moments_of_muon_continue_with_muon_only(plan_for):
    """Kernels lack the second moment, which AdamW would need."""
    weights = weights_of(tiny_run.MODEL, slots=True)
    kept = {n: v for n, v in weights.slots.items() if "kernel/v" not in n}
    weights = dataclasses.replace(weights, slots=kept)
    start = {"init_optimizer_state": True}
    assert plan_for(tiny_run.MODEL, weights, optimizer="muon", **start)
    with pytest.raises(UserError, match="Muon's, one for each kernel"):
        plan_for(tiny_run.MODEL, weights, optimizer="adamw", **start)
    with pytest.raises(UserError, match="which has none"):
        plan_for(tiny_run.MODEL, weights_of(tiny_run.MODEL), **start)


# --- other vocabularies -----------------------------------------------------


@pytest.fixture
def vocabularies(tiny_records, tmp_path):
    """Vocabulary files by name; "new" has 20 new pieces, in another order."""
    ours = tiny_records / "train/spiece.model"
    # With field 1000, a number that SentencePiece does not know.
    same = tmp_path / "same.model"
    same.write_bytes(ours.read_bytes() + b"\xc0\x3e\x01")
    model = sentencepiece_model_pb2.ModelProto.FromString(ours.read_bytes())
    del model.pieces[300:]
    pieces = [piece.piece for piece in model.pieces]
    for i, piece in enumerate(model.pieces[100:]):
        piece.piece = f"new{i}" if i < 20 else pieces[100:][-1 - i]
    (tmp_path / "new.model").write_bytes(model.SerializeToString())
    return {"": "", "ours": ours, "same": same, "new": tmp_path / "new.model"}


def test_rows_of_pieces_in_both_vocabularies_are_kept(
    tiny_records, vocabularies, tmp_path
):
    """The other rows start at their mean, added to the initial values."""
    records = shutil.copytree(tiny_records, tmp_path / "records")
    (records / "train/spiece.model").write_bytes(
        vocabularies["new"].read_bytes()
    )
    metadata = records / "train/metadata.json"
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "vocab_size": 300}))
    weights = weights_of(tiny_run.MODEL, vocabularies["ours"], slots=True)

    planned = plan(records, weights, vocab_size=300, init_optimizer_state=True)
    here = dataclasses.replace(tiny_run.MODEL, vocab_size=300)
    values = applied(planned, here)

    # By hand: for the ids of kept pieces, those in the model.
    there = {i: i for i in range(100)} | {i: 399 - i for i in range(120, 300)}
    old = {**weights.values, **weights.slots}
    for path in (PIECES, PIECE_BIAS):
        mean = np.mean([old[path][i] for i in there.values()], axis=0)
        for i in range(300):
            for name in moments_and(path):
                expected = 9 + mean if name == path else 0
                if i in there:
                    expected = old[name][there[i]]
                np.testing.assert_allclose(values[name][i], expected, rtol=1e-6)
    assert planned.report["pieces"] == {"kept": 280, "new": 20, "dropped": 120}
    assert "280 pieces kept, 20 new, 120 dropped" in planned.describe()[1]


# The setting, the vocabulary of the model, its number of pieces, and words of a
# refusal or a warning; `bare` records have no metadata.
VOCABULARIES = [
    ("", "same", 400, "", ""),
    ("", "", 400, "", "VOCABULARY OF init_checkpoint IS NOT.*_vocabulary"),
    ("", "ours", 400, "bare", "VOCABULARY OF the records IS NOT.*data_prep"),
    ("", "", 300, "", "of init_checkpoint must be known.* 300 .* 400 "),
    ("", "new", 300, "bare", "of the records must be known"),
    ("new", "", 400, "", "new.model must be .*300 pieces; 400"),
]


@pytest.mark.parametrize(
    ("given", "own", "size", "kind", "words"), VOCABULARIES
)
def test_vocabularies_are_compared_by_their_pieces(
    tiny_records, vocabularies, tmp_path, caplog, given, own, size, kind, words
):
    records = shutil.copytree(tiny_records, tmp_path / "records")
    if kind == "bare":
        (records / "train/metadata.json").unlink()
    model = dataclasses.replace(tiny_run.MODEL, vocab_size=size)
    weights = weights_of(model, vocabularies[own])
    changes = {"init_vocabulary": str(vocabularies[given])}
    if "must be" in words:
        with pytest.raises(UserError, match=words):
            plan(records, weights, **changes)
        return
    assert plan(records, weights, **changes).kept_pieces is None
    warnings = [m for m in caplog.messages if "VOCABULARY" in m]
    assert len(warnings) == bool(words)
    assert all(re.search(words, warning) for warning in warnings)


# --- other layers, positions and heads --------------------------------------


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


@pytest.mark.parametrize("number", [32, 90])
def test_new_positions_repeat_the_old_ones(plan_for, number):
    """Their moments are zero; surplus positions are dropped."""
    here = model_of(2, max_position_embeddings=number)
    weights = weights_of(model_of(2, max_position_embeddings=40), slots=True)
    planned = plan_for(here, weights, init_optimizer_state=True)
    values = applied(planned, here)
    for position in range(number):
        np.testing.assert_array_equal(
            values[POSITIONS][position],
            weights.values[POSITIONS][position % 40],
        )
        for path in (f"{POSITIONS}/m", f"{POSITIONS}/v"):
            expected = weights.slots[path][position] if position < 40 else 0
            np.testing.assert_array_equal(values[path][position], expected)
    assert planned.report["positions"] == {"here": number, "there": 40}
    assert any(f"{number} positions from 40" in x for x in planned.describe())


@pytest.mark.parametrize(
    ("here", "there", "fresh", "unused"),
    [
        ("sop", "nsp", {"sentence"}, {"sentence"}),
        ("sop", "none", {"sentence", "pooler"}, set()),
        ("none", "sop", set(), {"sentence", "pooler"}),
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
