import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ExportConfig,
    ModelConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.errors import UserError
from albert_tf.export_saved_model import export
from albert_tf.files import write_text
from albert_tf.modeling.pretrainer import AlbertPretrainer

MODEL = ModelConfig(
    vocab_size=41,
    embedding_size=16,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
    initializer_range=0.3,
)
STEPS = (20, 40)

# Runs signatures in a process of their own, which knows no model code.
CALL_SIGNATURES = """
import sys
import numpy as np
import tensorflow as tf
saved_model_dir, requests, answers = sys.argv[1:]
model = tf.saved_model.load(saved_model_dir)
inputs = dict(np.load(requests))
outputs = {"signatures": np.array(sorted(model.signatures))}
for name, function in model.signatures.items():
    needed = function.structured_input_signature[1]
    arrays = {key: tf.constant(inputs[key]) for key in needed}
    for key, value in function(**arrays).items():
        outputs[name + ":" + key] = value.numpy()
assert "albert_tf" not in sys.modules
np.savez(answers, **outputs)
"""


def write_run(
    run_dir, sentence_objective="sop", steps=STEPS, precision="float32"
):
    """A run as the trainer leaves it, with other weights at each step."""
    config = PretrainingConfig(
        model=MODEL,
        data=DataConfig(max_seq_length=17, max_predictions_per_seq=3),
        training=TrainingConfig(sentence_objective=sentence_objective),
        distribution=DistributionConfig(precision=precision),
    )
    pretrainer = AlbertPretrainer(MODEL, sentence_objective)
    pretrainer.build()
    store = checkpoints.CheckpointStore(
        str(run_dir), checkpoints.model_variables(pretrainer)
    )
    for step in steps:
        bias = pretrainer.masked_lm.output_bias
        bias.assign(np.random.default_rng(step).normal(size=bias.shape))
        store.save(step, {})
    store.wait()
    write_text(str(run_dir / "config.json"), json.dumps(config.to_dict()))


def write_records_files(run_dir):
    """What a run knows of its records; only these keys are read here."""
    metadata = {
        "vocabulary_kind": "self_contained",
        "do_lower_case": False,
        "vocabulary_sha256": "ab12",
    }
    (run_dir / "records_metadata.json").write_text(json.dumps(metadata))
    (run_dir / "spiece.model").write_bytes(b"pieces")


def make_batch(examples, length, padding=0):
    rng = np.random.default_rng(length)
    real = rng.integers(5, MODEL.vocab_size, (examples, length))
    return {
        "input_ids": np.pad(real, [(0, 0), (0, padding)]),
        "input_mask": np.pad(np.ones_like(real), [(0, 0), (0, padding)]),
        "segment_ids": np.pad(real % 2, [(0, 0), (0, padding)]),
        "masked_lm_positions": rng.integers(0, length, (examples, 2)),
    }


def as_int32(batch):
    return {name: tf.constant(v, tf.int32) for name, v in batch.items()}


def call(model, name, batch):
    function = model.signatures[name]
    needed = function.structured_input_signature[1]
    return function(**{k: v for k, v in as_int32(batch).items() if k in needed})


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    write_run(directory)
    write_records_files(directory)
    return directory


@pytest.fixture(scope="module")
def export_dir(run_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "saved_model"
    export(
        ExportConfig(run_dir=str(run_dir), export_dir=str(directory), top_k=4)
    )
    return directory


def test_another_process_answers_as_the_model_in_memory(
    run_dir, export_dir, tmp_path
):
    """All signatures, from the newest checkpoint, without our code."""
    batch = make_batch(examples=3, length=11)
    requests, answers = tmp_path / "requests.npz", tmp_path / "answers.npz"
    np.savez(requests, **{k: v.astype(np.int32) for k, v in batch.items()})
    subprocess.run(
        [sys.executable, "-c", CALL_SIGNATURES, export_dir, requests, answers],
        check=True,
        cwd=tmp_path,
    )
    served = np.load(answers)

    _, pretrainer, step = checkpoints.load_run(str(run_dir))
    outputs = {k: v.numpy() for k, v in pretrainer(as_int32(batch)).items()}
    assert step == 40
    assert served["signatures"].tolist() == [
        "encode",
        "fill_mask",
        "sentence_order",
        "serving_default",
    ]
    for signature in "encode", "serving_default":
        for name in "sequence_output", "pooled_output":
            np.testing.assert_allclose(
                served[f"{signature}:{name}"], outputs[name], atol=1e-5
            )
    log_odds = outputs["mlm_logits"].astype(np.float64)
    log_probabilities = log_odds - np.log(
        np.exp(log_odds).sum(-1, keepdims=True)
    )
    best = np.argsort(-log_odds, axis=-1)[..., :4]
    np.testing.assert_array_equal(served["fill_mask:top_ids"], best)
    np.testing.assert_allclose(
        served["fill_mask:top_log_probabilities"],
        np.take_along_axis(log_probabilities, best, axis=-1),
        atol=1e-5,
    )
    log_odds = np.diff(outputs["sentence_logits"])[:, 0]
    swapped = 1 / (1 + np.exp(-log_odds))
    np.testing.assert_allclose(
        served["sentence_order:swapped"], swapped, atol=1e-5
    )
    np.testing.assert_allclose(
        served["sentence_order:in_order"], 1 - swapped, atol=1e-5
    )


def test_batch_and_length_vary_and_padding_changes_nothing(export_dir):
    model = tf.saved_model.load(str(export_dir))
    for examples, length in (1, 5), (4, 12):
        plain = make_batch(examples, length)
        padded = make_batch(examples, length, padding=6)
        for name in "fill_mask", "sentence_order":
            for key, value in call(model, name, plain).items():
                np.testing.assert_allclose(
                    call(model, name, padded)[key], value, atol=1e-5
                )
        encoded = call(model, "encode", padded)["sequence_output"]
        assert encoded.shape == (examples, length + 6, 24)
        seen = padded | {"input_mask": np.ones_like(padded["input_mask"])}
        change = (
            call(model, "encode", seen)["pooled_output"]
            - (call(model, "encode", plain)["pooled_output"])
        )
        assert np.abs(change).max() > 1e-3


def test_a_sequence_longer_than_the_model_is_refused(export_dir):
    model = tf.saved_model.load(str(export_dir))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="at most 19 pieces"
    ):
        call(model, "encode", make_batch(examples=2, length=20))


def test_beside_the_graph_lies_what_a_caller_needs(export_dir):
    assets = export_dir / "assets.extra"
    assert json.loads((assets / "serving.json").read_text()) == {
        "step": 40,
        "max_seq_length": 17,
        "sentence_objective": "sop",
        "vocabulary_kind": "self_contained",
        "do_lower_case": False,
        "vocabulary_sha256": "ab12",
    }
    assert (assets / "spiece.model").read_bytes() == b"pieces"
    config = ModelConfig.from_json_file(str(assets / "albert_config.json"))
    assert config == MODEL


def test_the_step_can_be_chosen_and_replaces_an_earlier_export(
    run_dir, tmp_path
):
    export_dir = tmp_path / "saved_model"
    export_dir.mkdir()
    (tmp_path / "saved_model.partial").mkdir()  # of an interrupted export
    for step in 40, 20:
        export(
            ExportConfig(
                run_dir=str(run_dir),
                export_dir=f"{export_dir}/",
                checkpoint_step=step,
            )
        )
        note = export_dir / "assets.extra" / "serving.json"
        assert json.loads(note.read_text())["step"] == step
    assert [path.name for path in tmp_path.iterdir()] == ["saved_model"]
    bias = np.random.default_rng(20).normal(size=MODEL.vocab_size)
    restored = tf.train.load_checkpoint(str(export_dir / "variables/variables"))
    biases = [
        restored.get_tensor(name)
        for name in restored.get_variable_to_shape_map()
        if "masked_lm.Soutput_bias" in name
    ]
    np.testing.assert_allclose(biases, [bias], rtol=1e-6)


@pytest.mark.parametrize(
    ("objective", "signature"),
    [("nsp", {"next_sentence"}), ("none", set())],
)
def test_signatures_follow_the_sentence_objective(
    tmp_path, objective, signature
):
    """A bfloat16 run answers in float32; its records have no metadata."""
    write_run(
        tmp_path / "run", objective, steps=(20,), precision="mixed_bfloat16"
    )
    export(
        ExportConfig(
            run_dir=str(tmp_path / "run"), export_dir=str(tmp_path / "model")
        )
    )
    model = tf.saved_model.load(str(tmp_path / "model"))
    always = {"serving_default", "encode", "fill_mask"}
    assert set(model.signatures) == always | signature
    outputs = call(model, "encode", make_batch(examples=2, length=5))
    assert ("pooled_output" in outputs) == (objective == "nsp")
    assert {value.dtype for value in outputs.values()} == {tf.float32}
    note = json.loads(
        (tmp_path / "model/assets.extra/serving.json").read_text()
    )
    assert note["vocabulary_kind"] == "published"
    assert note["do_lower_case"] and note["vocabulary_sha256"] is None


def test_what_is_not_an_export_is_not_replaced(run_dir, tmp_path):
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(UserError, match="new, empty, or an earlier export"):
        export(ExportConfig(run_dir=str(run_dir), export_dir=str(tmp_path)))
    assert (tmp_path / "thesis.txt").read_text() == "irreplaceable"


def test_impossible_exports_are_refused_and_leave_nothing(run_dir, tmp_path):
    export_dir = str(tmp_path / "model")
    for settings, message in [
        ({"run_dir": ""}, "--run_dir is required"),
        ({"run_dir": str(tmp_path / "absent")}, "run_dir must be a run"),
        ({"checkpoint_step": 30}, "There are: 20, 40"),
        ({"top_k": 42}, "top_k must be at most vocab_size"),
    ]:
        values = {"run_dir": str(run_dir), "export_dir": export_dir} | settings
        with pytest.raises(UserError, match=message):
            export(ExportConfig(**values))
    assert not list(tmp_path.iterdir())
