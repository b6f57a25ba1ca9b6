import dataclasses
import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import albert_tf
from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    ModelConfig,
    TaskConfig,
)
from albert_tf.errors import UserError
from albert_tf.interop.convert import write_run as write_weights
from albert_tf.interop.formats import make_model
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID, sha256_of
from albert_tf.records.tokenization import Tokenizer, make_inputs, truncate
from albert_tf.runs import directory as run_directory
from albert_tf.runs.directory import load_config, write_config
from albert_tf.serving.export import (
    export,
    serve_pretrained,
)
from albert_tf.serving.kinds import serve_task
from albert_tf.serving.text_tokenizer import TextTokenizer
from tests.helpers.exports import (
    MODEL,
    answer_as_served,
    write_run,
    write_task_run,
)
from tests.helpers.small_builds import read_files
from tests.helpers.tiny_albert import TINY, VOCABULARY, random_weights

pytestmark = pytest.mark.text


def make_batch(examples, length):
    rng = np.random.default_rng(length)
    ids = rng.integers(5, MODEL.vocab_size, (examples, length))
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": ids % 2,
        "masked_lm_positions": rng.integers(0, length, (examples, 2)),
    }


def as_int32(batch):
    return {name: tf.constant(v, tf.int32) for name, v in batch.items()}


def softmax(logits):
    odds = np.exp(np.asarray(logits, np.float64))
    return odds / odds.sum(-1, keepdims=True)


def call(model, name, batch):
    function = model.signatures[name]
    needed = function.structured_input_signature[1]
    return function(**{k: v for k, v in as_int32(batch).items() if k in needed})


@pytest.fixture(scope="module")
def trained(run_dir):
    """The model in memory, and its tokenizer."""
    _, pretrainer, step = run_directory.load_run(str(run_dir))
    assert step == 40
    return pretrainer, Tokenizer(str(run_dir / "spiece.model"))


def test_signatures_of_ids_equal_the_model_in_memory(served, trained):
    """All of them, from the newest checkpoint."""
    batch = make_batch(examples=3, length=11)
    pretrainer, inputs = trained[0], as_int32(batch)
    outputs = pretrainer.encode(inputs) | pretrainer(inputs)
    assert sorted(served.signatures) == [
        "embed",
        "embed_text",
        "encode",
        "encode_text",
        "encode_text_pair",
        "fill_mask",
        "fill_mask_text",
        "sentence_order",
        "sentence_order_text_pair",
        "serving_default",
    ]
    for signature in "encode", "serving_default":
        encoded = call(served, signature, batch)
        for name in "sequence_output", "pooled_output":
            np.testing.assert_allclose(encoded[name], outputs[name], atol=1e-5)
    logits = outputs["mlm_logits"].numpy()
    best = np.argsort(-logits, axis=-1)[..., :4]
    filled = call(served, "fill_mask", batch)
    np.testing.assert_array_equal(filled["top_ids"], best)
    np.testing.assert_allclose(
        filled["top_log_probabilities"],
        np.log(np.take_along_axis(softmax(logits), best, axis=-1)),
        atol=1e-5,
    )
    order = call(served, "sentence_order", batch)
    np.testing.assert_allclose(
        np.stack([order["in_order"], order["swapped"]], axis=-1),
        softmax(outputs["sentence_logits"]),
        atol=1e-5,
    )


@pytest.mark.parametrize("pairs", [None, ["a", "Paris.", "the"]])
def test_signatures_of_text_answer_as_those_of_ids(served, trained, pairs):
    """Unlike in `fill_mask_text`, "[MASK]" is ordinary text. The length is
    that of the longest text."""
    texts = ["The cat sat.", "", "it [MASK]"]
    inputs = {"text": texts} | ({"text_pair": pairs} if pairs else {})
    suffix = "_text_pair" if pairs else "_text"
    answer = answer_as_served(served, f"encode{suffix}", inputs)
    ids = [
        [trained[1].encode_batch([text]).ids.tolist() for text in given]
        for given in inputs.values()
    ]
    cut = truncate(ids[0], ids[1] if pairs else None, 17)
    batch = make_inputs(*cut, 17)._asdict()
    length = batch["input_mask"].sum(1).max()
    batch = {name: values[:, :length] for name, values in batch.items()}
    expected = {**call(served, "encode", batch), **batch}
    if pairs:
        answer |= answer_as_served(served, f"sentence_order{suffix}", inputs)
        expected |= call(served, "sentence_order", batch)
    for name, values in answer.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)


def test_an_embedding_is_the_mean_of_the_tokens(served, trained):
    """As `albert_tf.embed` returns it, for a batch with padding."""
    texts = ["The cat sat.", "", "it is"]
    answer = answer_as_served(served, "embed_text", {"text": texts})
    for name, normalize in ("embedding", False), ("normalized_embedding", True):
        expected = albert_tf.embed(*trained, texts, normalize)
        np.testing.assert_allclose(answer[name], expected, atol=1e-5)
    sizes = (
        np.linalg.norm(expected, axis=1),
        np.linalg.norm(answer["embedding"]),
    )
    np.testing.assert_allclose(sizes[0], 1, rtol=1e-6)
    assert sizes[1] > 4


def test_fill_mask_text_answers_as_fill_mask(served, trained):
    """The most probable pieces; padding where a text has fewer masks."""
    tokenizer = trained[1]
    texts = ["The [MASK] sat on[MASK].", "Rome is it", "[MASK]"]
    answer = answer_as_served(served, "fill_mask_text", {"text": texts})
    pieces, probabilities = answer["top_pieces"], answer["top_probabilities"]
    assert pieces.shape == probabilities.shape == (3, 2, 4)
    for row, text in enumerate(texts):
        ids = np.array([[CLS_ID, *tokenizer.encode_with_masks(text), SEP_ID]])
        positions = np.flatnonzero(ids == MASK_ID)
        count = len(positions)
        assert set(pieces[row, count:].flat) <= {b""}
        assert not probabilities[row, count:].any()
        batch = {"input_ids": ids, "input_mask": np.ones_like(ids)}
        batch |= {"segment_ids": 0 * ids, "masked_lm_positions": [positions]}
        filled = call(served, "fill_mask", batch)
        np.testing.assert_allclose(
            np.log(probabilities[row, :count]),
            filled["top_log_probabilities"][0],
            atol=1e-4,
        )
        assert [piece.decode() for piece in pieces[row, :count].flat] == [
            tokenizer.id_to_piece(int(i))
            for i in filled["top_ids"].numpy().flat
        ]


def test_long_texts_are_cut_and_lost_masks_have_no_answer(served):
    """17 positions hold [CLS], [SEP] and 15 of the 16 masks."""
    answer = served.signatures["fill_mask_text"](
        text=tf.constant(["[MASK]" * 16, "[MASK] " + "the cat " * 20])
    )
    found = (answer["top_probabilities"].numpy() > 0).all(-1)
    assert found.tolist() == [[True] * 15 + [False], [True] + [False] * 15]
    encoded = served.signatures["encode_text_pair"](
        text=tf.constant(["a " * 20]), text_pair=tf.constant([""])
    )
    assert encoded["sequence_output"].shape == (1, 17, 24)
    ids = encoded["input_ids"][0].numpy().tolist()
    assert [i for i, piece in enumerate(ids) if piece == SEP_ID] == [15, 16]


def test_no_texts_have_no_answers(served):
    for name, function in served.signatures.items():
        specs = function.structured_input_signature[1]
        if "text" in specs:
            empty = {text: tf.constant([], tf.string) for text in specs}
            for values in function(**empty).values():
                assert values.shape[0] == 0, name


def test_a_sequence_longer_than_the_model_is_refused(served):
    """No other error comes first, however the operations are scheduled."""
    batch = make_batch(examples=2, length=20)
    for _ in range(50):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="at most 19 tokens"
        ):
            call(served, "encode", batch)


def test_assets_hold_vocabulary_architecture_and_description(
    run_dir, export_dir
):
    assets = export_dir / "assets.extra"
    vocabulary = (run_dir / "spiece.model").read_bytes()
    assert json.loads((assets / "serving.json").read_text()) == {
        "step": 40,
        "max_seq_length": 17,
        "sentence_objective": "sop",
        "vocabulary_kind": "published",
        "do_lower_case": True,
        "vocabulary_sha256": sha256_of(vocabulary),
    }
    assert (assets / "spiece.model").read_bytes() == vocabulary
    config = ModelConfig.from_json_file(str(assets / "albert_config.json"))
    assert config == MODEL


def test_the_file_holds_the_graph_of_the_model_once(export_dir):
    """However many signatures call it; gradient functions do not count."""
    saved = saved_model_pb2.SavedModel.FromString(
        (export_dir / "saved_model.pb").read_bytes()
    )
    functions = saved.meta_graphs[0].graph_def.library.function
    encoders = [
        function.signature.name
        for function in functions
        if sum("MatMul" in node.op for node in function.node_def)
        > MODEL.num_hidden_layers
        and "internal_grad_fn" not in function.signature.name
    ]
    assert len(encoders) == 1, encoders


def test_the_step_can_be_chosen_and_no_export_is_replaced(run_dir, tmp_path):
    export_dir = tmp_path / "saved_model"
    export_dir.mkdir()
    config = ExportConfig(
        run_dir=str(run_dir),
        export_dir=f"{export_dir}/",
        checkpoint_step=20,
        text_signatures=False,
    )
    export(config)
    before = read_files(export_dir)
    note = json.loads((export_dir / "assets.extra/serving.json").read_text())
    assert note["step"] == 20
    with pytest.raises(
        UserError, match=r"export_dir must be new.*which exists"
    ):
        export(dataclasses.replace(config, checkpoint_step=40))
    assert read_files(export_dir) == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved_model"]
    bias = np.random.default_rng(20).normal(size=MODEL.vocab_size)
    restored = tf.train.load_checkpoint(str(export_dir / "variables/variables"))
    biases = [
        restored.get_tensor(name)
        for name in restored.get_variable_to_shape_map()
        if "masked_lm.Soutput_bias" in name
    ]
    np.testing.assert_allclose(biases, [bias], rtol=1e-6)


@pytest.mark.slow
def test_signatures_follow_the_sentence_objective(exported):
    """A bfloat16 run answers in float32; its records have no metadata."""
    export_dir = exported("nsp")
    model = tf.saved_model.load(str(export_dir))
    always = {"serving_default", "encode", "embed", "fill_mask"}
    texts = {"encode_text", "encode_text_pair", "embed_text", "fill_mask_text"}
    texts |= {"next_sentence", "next_sentence_text_pair"}
    assert set(model.signatures) == always | texts
    batch = make_batch(examples=2, length=5)
    outputs = call(model, "encode", batch)
    assert set(outputs) == {"sequence_output", "pooled_output"}
    assert {value.dtype for value in outputs.values()} == {tf.float32}
    note = json.loads((export_dir / "assets.extra/serving.json").read_text())
    assert note["vocabulary_kind"] == "published" and note["do_lower_case"]

    pretrainer = AlbertPretrainer(MODEL, "none")
    pretrainer.build()
    signatures = serve_pretrained(pretrainer, top_k=4, max_seq_length=17)
    assert set(signatures) == always
    del batch["masked_lm_positions"]
    outputs = signatures["encode"](*as_int32(batch).values())
    assert set(outputs) == {"sequence_output"}


def test_an_export_without_text_needs_neither_tensorflow_text_nor_vocabulary(
    run_dir, tmp_path, monkeypatch
):
    """The description then comes from the metadata of the records."""
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(UserError, match="pip install 'tensorflow-text=="):
        export(
            ExportConfig(run_dir=str(run_dir), export_dir=str(tmp_path / "a"))
        )
    write_run(tmp_path / "run", steps=(20,))
    metadata = (run_dir / "records_metadata.json").read_text()
    (tmp_path / "run" / "records_metadata.json").write_text(metadata)
    settings = {
        "run_dir": str(tmp_path / "run"),
        "export_dir": str(tmp_path / "model"),
    }
    with pytest.raises(UserError, match=r"spiece\.model must exist"):
        export(ExportConfig(**settings))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]

    export(ExportConfig(**settings, text_signatures=False))

    model = tf.saved_model.load(str(tmp_path / "model"))
    names = ["embed", "encode", "fill_mask", "sentence_order"]
    assert sorted(model.signatures) == [*names, "serving_default"]
    assets = tmp_path / "model" / "assets.extra"
    note = json.loads((assets / "serving.json").read_text())
    assert note.items() >= json.loads(metadata).items()
    assert not (assets / "spiece.model").exists()


# --- fine-tuned models -------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "settings", "threshold", "length"),
    [
        (TaskConfig(doc_stride=128), {"null_threshold": "0"}, 0, 96),
        (TaskConfig("squad_v1", doc_stride=20), {}, None, 80),
    ],
)
def test_a_client_is_told_how_to_find_answers(
    tmp_path, task, settings, threshold, length
):
    """The threshold of the run, unless a setting replaces it; and the length
    that was given, where the texts of training were shorter."""
    run_dir = str(tmp_path / "run")
    write_task_run("beam", tmp_path / "run")
    config = load_config(run_dir, FinetuningConfig)
    stored = dataclasses.replace(config, task=task)
    lengths = {"max_seq_length": 64, "max_text_length": length}
    write_config(run_dir, stored.replace(**lengths))
    where = {"run_dir": run_dir, "export_dir": f"{tmp_path}/export"}
    export(ExportConfig(**where, **settings))
    note = tmp_path / "export/assets.extra/serving.json"
    serving = json.loads(note.read_text())
    assert serving["question_answering"] == {
        "squad_head": "beam",
        "null_threshold": threshold,
        "doc_stride": task.doc_stride,
        "max_query_length": 64,
        "max_answer_length": 30,
        "n_best_size": 20,
    }
    assert serving["max_seq_length"] == length


@pytest.mark.parametrize(
    ("task", "signatures"),
    [
        ("rte", {"classify_text_pair"}),
        ("sst2", {"classify_text"}),
        ("", {"classify_text", "classify_text_pair"}),
    ],
)
def test_a_run_of_pairs_takes_pairs_only(task, signatures, tmp_path):
    """And a run of single texts only these. The texts of a converted run are
    unknown."""
    model = make_model(write_task_run("classification", tmp_path / "run"))
    run = FinetuningConfig(task=TaskConfig(task=task))
    found = serve_task(model, run, TextTokenizer(str(VOCABULARY)))
    assert set(found) == {"serving_default", "classify", *signatures}


# --- refusals ----------------------------------------------------------------


@pytest.fixture
def refused(run_dir, tmp_path):
    """A function: asserts that an export is refused and leaves no file."""

    def check(message, **settings):
        with pytest.raises(UserError, match=message):
            export(
                ExportConfig(
                    **{
                        "run_dir": str(run_dir),
                        "export_dir": str(tmp_path / "model"),
                    }
                    | settings
                )
            )
        assert not list(tmp_path.glob("model*"))

    return check


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run_dir": "/absent"}, "config.json must exist"),
        (
            {"run_dir": "models/albert_mini_en"},
            "a Hugging Face folder. Convert it first: python -m albert_tf.conv",
        ),
        ({"checkpoint_step": 30}, "Available steps: 20, 40"),
        ({"null_threshold": "nan"}, "finite number. Received: nan"),
        ({"null_threshold": "high"}, "finite number. Received: high"),
        ({"max_seq_length": 20}, "at most max_position_embeddings.*20 and 19"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message, refused):
    refused(message, **settings)


def test_another_vocabulary_is_refused(run_dir, tmp_path, refused):
    """By its checksum; by its size where no checksum is known."""
    run = tmp_path / "run"
    write_run(run, steps=(20,))
    (run / "spiece.model").write_bytes(VOCABULARY.read_bytes())
    refused("vocab_size 30000 and 41.* Restore the vocab", run_dir=str(run))
    metadata = (run_dir / "records_metadata.json").read_text()
    (run / "records_metadata.json").write_text(metadata)
    refused("sha256 'fefb.* Restore the vocabulary of the", run_dir=str(run))


def test_weights_that_are_not_finite_are_refused(tmp_path, refused):
    run = str(tmp_path / "run")
    weights = random_weights(TINY)
    weights.values["albert/pooler/bias"][1] = np.nan
    write_weights(weights, run, run)
    refused(r"step-0+ must be finite.*pooler/bias\. Choose", run_dir=run)


def test_a_question_must_leave_room_for_its_context(tmp_path, refused):
    write_task_run("question_answering", tmp_path / "run")
    refused(
        "max_query_length must be below max_seq_length - 3.* 14 and 17",
        run_dir=str(tmp_path / "run"),
        max_seq_length=17,
    )
