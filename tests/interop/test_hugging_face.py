"""Models are written as Hugging Face folders, and folders are read."""

import dataclasses
import json
import pathlib
import warnings

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from albert_tf.errors import UserError
from albert_tf.interop import formats, hugging_face
from albert_tf.interop.hugging_face import (
    CONFIG_FILE,
    SHARED_SETTINGS,
    WEIGHTS_FILE,
)
from albert_tf.interop.weight_names import list_weights
from albert_tf.io import shipped
from tests.helpers.conversion import assert_same, change_json
from tests.helpers.tiny_albert import HEADS, TINY, VOCABULARY, random_weights

MODELS = {
    "groups": TINY,
    "E is H": dataclasses.replace(TINY, embedding_size=6, hidden_act="relu"),
    "published vocabulary": dataclasses.replace(
        TINY, vocab_size=30000, max_position_embeddings=13
    ),
}


def make_weights(name="groups", objective="sop"):
    """Random weights, with the published vocabulary if the size fits."""
    config = MODELS[name]
    vocabulary = str(VOCABULARY) if config.vocab_size == 30000 else ""
    return random_weights(config, objective, vocabulary=vocabulary)


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder of `TINY`, and its weights."""
    weights = make_weights()
    hugging_face.write(weights, str(tmp_path / "folder"))
    return tmp_path / "folder", weights


def change_tensors(folder, changes):
    """Replaces tensors by name; None removes one."""
    path = folder / WEIGHTS_FILE
    tensors = safetensors.numpy.load_file(path) | changes
    kept = {name: v for name, v in tensors.items() if v is not None}
    safetensors.numpy.save_file(kept, path, {"format": "pt"})


def transformers_model(class_name):
    """A model of transformers with random weights, in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(5)
    settings = {**TINY.to_dict(), "initializer_range": 0.5}
    config = transformers.AlbertConfig(**settings | {"hidden_act": "gelu_new"})
    model = getattr(transformers, class_name)(config).eval()
    for parameter in model.parameters():
        # Initial biases are all 0 and gammas all 1: swaps would not show.
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize(
    ("name", "objective"),
    [("groups", "nsp"), ("E is H", "none"), ("published vocabulary", "sop")],
)
def test_a_written_folder_is_read_bit_for_bit(tmp_path, name, objective):
    weights = make_weights(name, objective)
    hugging_face.write(weights, str(tmp_path))
    read = hugging_face.read(str(tmp_path))
    assert_same(read, weights)
    theirs = "ForMaskedLM" if objective == "none" else "ForPreTraining"
    stored = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert stored["architectures"] == [f"Albert{theirs}"]
    if weights.vocabulary:
        written = pathlib.Path(read.vocabulary).read_bytes()
        assert written == VOCABULARY.read_bytes()
    else:
        assert read.vocabulary == ""
    # transformers 4.46 needs the format, and sets a bias without its second
    # name to 0.
    with safetensors.safe_open(tmp_path / WEIGHTS_FILE, "np") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(
            file.get_tensor("predictions.decoder.bias"),
            weights.values["albert/masked_lm/output_bias"],
        )


@pytest.mark.interop
@pytest.mark.parametrize(
    ("class_name", "dtype"),
    [
        ("ForPreTraining", "float32"),
        ("ForMaskedLM", "bfloat16"),
        ("ForPreTraining", "float16"),
    ],
)
def test_a_model_of_transformers_is_read_bit_for_bit(
    tmp_path, class_name, dtype
):
    import torch

    model = transformers_model(f"Albert{class_name}")
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    weights = hugging_face.read(str(tmp_path))
    has_head = class_name == "ForPreTraining"
    assert weights.sentence_objective == ("sop" if has_head else "none")
    assert weights.config == dataclasses.replace(TINY, initializer_range=0.5)
    state = model.state_dict()
    for weight in list_weights(weights.config, weights.sentence_objective):
        value = weights.values[weight.path]
        np.testing.assert_array_equal(
            value.T if weight.transposed else value,
            state[weight.hugging_face].float().numpy(),
            err_msg=weight.path,
        )


@pytest.mark.interop
def test_an_encoder_without_heads_gets_initial_heads(tmp_path, caplog):
    """Its names have no prefix; a warning is logged for each head."""
    model = transformers_model("AlbertModel")
    model.save_pretrained(tmp_path)
    weights = hugging_face.read(str(tmp_path))
    state = model.state_dict()
    for weight in list_weights(weights.config):
        value = weights.values[weight.path]
        name = weight.hugging_face.removeprefix("albert.")
        if name in state:
            theirs = state[name].numpy()
            np.testing.assert_array_equal(
                value.T if weight.transposed else value, theirs
            )
        elif weight.path.endswith("transform/kernel"):
            assert 0.2 < value.std() / 0.5 < 1.5
            assert np.abs(value).max() <= 2 * 0.5
        else:
            assert weight.path.split("/")[1] in ("masked_lm", "sentence")
            assert (value == weight.path.endswith("gamma")).all()
    assert weights.sentence_objective == "sop"
    for head in ("sentence", "masked-LM"):
        assert f"has no {head} head" in caplog.text


@pytest.mark.interop
def test_transformers_loads_a_folder_without_warnings(tmp_path, caplog):
    """Each class that users call finds exactly its weights."""
    import transformers

    weights = make_weights("published vocabulary")
    complete, part = tmp_path / "complete", tmp_path / "part"
    hugging_face.write(weights, str(complete))
    hugging_face.write(make_weights("published vocabulary", "none"), str(part))
    transformers.utils.logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Not about the folder: deprecations in PyTorch and Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for class_name, directory in (
            ("AutoModelForPreTraining", complete),
            ("AlbertForPreTraining", complete),
            ("AutoModelForMaskedLM", part),
            ("AlbertForMaskedLM", part),
        ):
            _, loading = getattr(transformers, class_name).from_pretrained(
                directory, output_loading_info=True
            )
            assert not any(loading.values()), (class_name, loading)
        for class_name in (
            "AutoTokenizer",
            "AlbertTokenizer",
            "AlbertTokenizerFast",
        ):
            tokenizer = getattr(transformers, class_name).from_pretrained(
                complete
            )
            pair = tokenizer("Paris [MASK] Is", "Is it?")
            ids = [2, 1162, 4, 25, 3, 25, 32, 60, 3]
            assert pair["input_ids"] == ids
            assert pair["token_type_ids"] == [0] * 5 + [1] * 4
            assert tokenizer.model_max_length == 13
            assert tokenizer.pad_token_id == 0
    assert not [r for r in caplog.records if r.levelname != "INFO"]


def test_names_of_older_versions_are_read(folder):
    """Of tied weights, constants and the approximation of GELU."""
    directory, weights = folder
    words = weights.values["albert/embeddings/word_embeddings"]
    bias = weights.values["albert/masked_lm/output_bias"]

    changes = {
        "albert.embeddings.position_ids": np.arange(7)[np.newaxis],
        "predictions.decoder.weight": words,
        "predictions.decoder.bias": bias,
        "predictions.bias": None,  # one of the two names is enough
    }
    change_tensors(directory, changes)
    for gelu in "gelu_new", "gelu_pytorch_tanh", "gelu_fast":
        change_json(directory / CONFIG_FILE, hidden_act=gelu)
        assert_same(hugging_face.read(str(directory)), weights)


PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
POOLER = "albert.pooler.bias"
QA, CLASSES = "question_answering", "classification"


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"id2label": {"3": "c", "1": "a", "2": "b"}}, ("a", "b", "c")),
        ({"id2label": {"0": "a", "2": "c", "10": "d"}}, ("a", "c", "d")),
        ({"id2label": {"0": 1, "1": 2, "2": 3}}, ("1", "2", "3")),
        (
            {"id2label": None, "num_labels": 3},
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
    ],
)
def test_labels_are_those_that_transformers_makes(tmp_path, config, labels):
    """A logit for each name, in the order of their numbers."""
    weights = random_weights(TINY, "none", head=HEADS["classification"])
    hugging_face.write(weights, str(tmp_path))
    change_json(tmp_path / CONFIG_FILE, label2id=None, **config)
    assert hugging_face.read(str(tmp_path)).head.labels == labels


@pytest.mark.parametrize(
    ("kind", "config", "tensors", "message"),
    [
        (
            "",
            {"hidden_act": "gelu"},
            {},
            "gelu_new, the tanh .*v1 models, which say gelu",
        ),
        ("", {"hidden_act": ["tanh"]}, {}, r'one of .*Received: \["tanh"\]'),
        ("", {"layer_norm_eps": 1e-5}, {}, "layer_norm_eps .*1e-12.*: 1e-05"),
        ("", {"model_type": "bert"}, {}, 'model_type .* "albert".*: "bert"'),
        ("", {"tie_word_embeddings": False}, {}, "tie_word_embeddings"),
        ("", {"sentence_objective": "mlm"}, {}, '"none". Received: "mlm"'),
        (
            "",
            {"hidden_size": 7},
            {},
            "num_attention_heads must divide hidden_size",
        ),
        # The default of transformers is 4096; ours is 768.
        ("", {"hidden_size": None}, {}, r"\[4, 6\], not \[4, 4096\]"),
        ("", {}, {POOLER: None}, "albert/pooler/bias is missing"),
        ("", {}, {"more": np.zeros(2, np.float32)}, "more is unknown"),
        ("", {}, {POOLER: np.zeros(6, np.int32)}, "floating-point .*: I32"),
        (
            "",
            {},
            {"predictions.decoder.bias": np.ones(11)},
            "predictions.* must equal the other albert/masked_lm/output_bias",
        ),
        (
            "",
            {"embedding_size": 6},
            {
                f"{PROJECTION}.weight": 2 * np.eye(6, dtype=np.float32),
                f"{PROJECTION}.bias": np.zeros(6, np.float32),
            },
            "must be the identity",
        ),
        # Old versions of transformers store a pooler, which is not named.
        (
            "regression",
            {"architectures": ["AlbertForQuestionAnswering"]},
            {},
            r"albert/span/kernel is missing(?!.*albert\.pooler)",
        ),
        *(
            (CLASSES, {"id2label": labels}, {}, message)
            for labels, message in (
                (["a", "b", "c"], "must be an object of names by number"),
                ({"a": "0", "b": "1"}, "must be an object of names by number"),
                ({"0": "a", "1": "b", "2": "a "}, "be different names"),
            )
        ),
        (CLASSES, {"id2label": None}, {}, r"\[6, 3\], not \[6, 2\]"),
        (QA, {"albert_tf": {"doc_stride": 0}}, {}, "json: doc_stride must"),
        (QA, {"albert_tf": {"max_seq_length": 8}}, {}, "at most.*8 and 7"),
        (
            QA,
            {"albert_tf": {"max_qa_length": 8}},
            {},
            "settings among max_seq_length, doc_stride",
        ),
        (QA, {"albert_tf": [1]}, {}, "must be an object with settings"),
    ],
)
def test_a_model_that_is_not_supported_is_refused(
    tmp_path, kind, config, tensors, message
):
    weights = make_weights()
    if kind:
        weights = random_weights(TINY, "none", head=HEADS[kind])
    hugging_face.write(weights, str(tmp_path))
    change_json(tmp_path / CONFIG_FILE, **config)
    change_tensors(tmp_path, tensors)
    with pytest.raises(UserError, match=message):
        hugging_face.read(str(tmp_path))


@pytest.mark.interop
def test_missing_settings_have_the_defaults_of_transformers():
    """Those of `AlbertConfig`, which are of an xxlarge model."""
    import transformers

    theirs = transformers.AlbertConfig().to_dict()
    assert {name: theirs[name] for name in SHARED_SETTINGS} == SHARED_SETTINGS


# --- outputs -----------------------------------------------------------------

# Outputs of transformers -> ours, where the names differ.
OURS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "mlm_logits",
    "sop_logits": "sentence_logits",
}


def run_transformers(weights, directory, batch):
    """The outputs of the class of a model, by our names."""
    import torch
    import transformers

    cls = getattr(transformers, hugging_face.class_name(weights))
    model, loading = cls.from_pretrained(
        directory,
        # Not the fused kernels: in some processes, their outputs differ by
        # more than rounding errors.
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not any(loading.values()), loading
    ids, mask, segments = (
        torch.tensor(v if v.shape[1] > 1 else v[:, 0]).long()
        for v in batch.values()
    )
    inputs = {"attention_mask": mask, "token_type_ids": segments}
    with torch.no_grad():
        outputs = dict(model.eval()(ids, **inputs))
        if weights.head is None:
            outputs |= model.albert(ids, **inputs)
            if weights.sentence_objective == "none":  # of AlbertForMaskedLM
                outputs["prediction_logits"] = outputs.pop("logits")
    return {OURS.get(n, n): values.numpy() for n, values in outputs.items()}


@pytest.mark.interop
@pytest.mark.parametrize(
    "name", [*MODELS, "none", *sorted(HEADS.keys() - {"beam"})]
)
def test_transformers_gives_the_same_outputs(tmp_path, name):
    """For a batch with padding, and with no missing or unknown weight."""
    if name in HEADS:
        weights = random_weights(TINY, "none", head=HEADS[name])
    elif name == "none":
        weights = make_weights("groups", "none")
    else:
        weights = make_weights(name)
    hugging_face.write(weights, str(tmp_path))
    choices = weights.head.num_choices if weights.head else 1
    ids = np.random.default_rng(0).integers(5, 11, (2, choices, 7), np.int32)
    ids[..., 0], ids[..., -1] = 2, 3
    mask = np.ones_like(ids)
    mask[1, :, 4:] = 0
    batch = {
        "input_ids": ids * mask,
        "input_mask": mask,
        "segment_ids": mask * (np.arange(7) >= 3),
    }

    expected = run_transformers(weights, tmp_path, batch)

    inputs = {n: v.reshape(2, -1).astype(np.int32) for n, v in batch.items()}
    model, ours = formats.make_model(weights), {}
    if weights.head is None:
        ours = model.encode(inputs)
        inputs["masked_lm_positions"] = np.int32([range(7)] * 2)
    ours |= model(inputs)
    assert expected.keys() <= ours.keys() and expected
    for output, values in expected.items():
        scale = max(1.0, np.abs(values).max())
        np.testing.assert_allclose(ours[output], values, atol=1e-5 * scale)


@pytest.mark.interop
def test_hidden_states_and_attentions_are_those_of_transformers():
    """Of each layer of the released model, for a batch with padding."""
    import torch
    import transformers

    model, tokenizer = formats.load("albert_mini_en")
    inputs = tokenizer.encode(["It was dark inside.", "Run"], ["He saw", "!"])
    theirs = transformers.AlbertModel.from_pretrained(
        shipped.find("albert_mini_en", shipped.MODEL),
        attn_implementation="eager",
    )(
        torch.tensor(inputs.input_ids),
        attention_mask=torch.tensor(inputs.input_mask),
        token_type_ids=torch.tensor(inputs.segment_ids),
        output_hidden_states=True,
        output_attentions=True,
    )
    ours = model.backbone.layer_outputs(*inputs)
    tokens = inputs.input_mask.astype(bool)
    pairs = [*zip(ours.hidden_states, theirs.hidden_states, strict=True)]
    pairs += zip(
        [np.swapaxes(a, 1, 2) for a in ours.attentions],
        [a.transpose(1, 2) for a in theirs.attentions],
        strict=True,
    )
    assert len(pairs) == 9
    for our, their in pairs:
        expected = their.detach().numpy()[tokens]
        np.testing.assert_allclose(np.asarray(our)[tokens], expected, atol=2e-5)
