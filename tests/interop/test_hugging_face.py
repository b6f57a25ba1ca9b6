"""Folders of Hugging Face: theirs read here, ours read there."""

import dataclasses
import json
import pathlib
import shutil
import sys
import unicodedata
import warnings

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from albert_tf.errors import UserError
from albert_tf.interop import hugging_face
from albert_tf.interop.hugging_face import CONFIG_FILE
from albert_tf.interop.hugging_face_check import verify
from albert_tf.interop.hugging_face_config import SHARED_SETTINGS
from albert_tf.interop.safetensors_files import INDEX_FILE, WEIGHTS_FILE
from albert_tf.interop.weight_names import list_weights
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import directory as run_directory
from data_prep import train_tokenizer
from data_prep.config import TokenizerConfig
from tests.helpers import tiny_run
from tests.interop.test_weight_names import TINY, random_weights

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
VOCABULARY = str(TESTDATA / "30k-clean.model")

# Transformers 4 fails at more inner groups than a group has layers.
SIMPLER = dataclasses.replace(TINY, inner_group_num=1)
MODELS = {
    "groups": TINY,
    "unshared": dataclasses.replace(
        SIMPLER,
        parameter_sharing="none",
        num_hidden_groups=1,
        hidden_act="relu",
    ),
    "attention shared": dataclasses.replace(
        SIMPLER, parameter_sharing="attention"
    ),
    "E is H": dataclasses.replace(TINY, embedding_size=6),
    "published vocabulary": dataclasses.replace(
        TINY, vocab_size=30000, max_position_embeddings=13
    ),
}


def make_weights(config=TINY, objective="sop"):
    """Random, their size such that GELU by erf would show."""
    vocabulary = VOCABULARY if config.vocab_size == 30000 else ""
    return random_weights(
        config, objective, vocabulary=vocabulary, source="a/model"
    )


@pytest.fixture
def folder(tmp_path):
    """A folder of TINY, and its weights."""
    weights = make_weights()
    hugging_face.write(weights, str(tmp_path / "folder"))
    return tmp_path / "folder", weights


def change_config(folder, **changes):
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    path = folder / WEIGHTS_FILE
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})


def assert_equal(read, written):
    assert set(read.values) == set(written.values)
    for path, value in written.values.items():
        np.testing.assert_array_equal(read.values[path], value, err_msg=path)


# --- ours, read again --------------------------------------------------------


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
@pytest.mark.parametrize("name", ["groups", "E is H", "published vocabulary"])
def test_what_is_written_is_read_again_bit_for_bit(tmp_path, name, objective):
    weights = make_weights(MODELS[name], objective)
    hugging_face.write(weights, str(tmp_path))
    read = hugging_face.read(str(tmp_path))
    assert (read.config, read.sentence_objective) == (MODELS[name], objective)
    assert_equal(read, weights)
    theirs = "ForMaskedLM" if objective == "none" else "ForPreTraining"
    stored = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert stored["architectures"] == [f"Albert{theirs}"]
    if weights.vocabulary:
        written = pathlib.Path(read.vocabulary).read_bytes()
        assert written == pathlib.Path(VOCABULARY).read_bytes()
    else:
        assert read.vocabulary == ""


def test_old_versions_of_transformers_find_what_they_need(folder):
    """4.46 fails without the format, and zeroes a bias without its twin."""
    with safetensors.safe_open(folder[0] / WEIGHTS_FILE, "np") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(
            file.get_tensor("predictions.decoder.bias"),
            folder[1].values["albert/masked_lm/output_bias"],
        )


def test_unshared_layers_become_groups(tmp_path):
    weights = make_weights(MODELS["attention shared"])
    hugging_face.write(weights, str(tmp_path))
    assert_equal(hugging_face.read(str(tmp_path)), weights.regrouped())


def test_the_sentence_head_can_be_left_out(tmp_path):
    weights = make_weights()
    hugging_face.write(weights, str(tmp_path), with_sentence_head=False)
    read = hugging_face.read(str(tmp_path))
    assert read.sentence_objective == "none"
    assert len(read.values) == len(weights.values) - 4
    names = safetensors.numpy.load_file(tmp_path / WEIGHTS_FILE)
    assert not [n for n in names if "pooler" in n or "sop" in n]


# --- theirs ------------------------------------------------------------------


def transformers_model(class_name, **settings):
    """A model of transformers with random weights, in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.AlbertConfig(
        vocab_size=11,
        embedding_size=4,
        hidden_size=6,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=2,
        num_attention_heads=2,
        intermediate_size=10,
        max_position_embeddings=7,
        initializer_range=0.5,
        **settings,
    )
    model = getattr(transformers, class_name)(config).eval()
    for parameter in model.parameters():
        # Biases and norms begin as 0 and 1, which would hide their names.
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.interop
@pytest.mark.parametrize("class_name", ["ForPreTraining", "ForMaskedLM"])
def test_what_transformers_saves_answers_the_same_here(tmp_path, class_name):
    model = transformers_model(f"Albert{class_name}")
    model.save_pretrained(tmp_path / "theirs")
    weights = hugging_face.read(str(tmp_path / "theirs"))
    has_head = class_name == "ForPreTraining"
    assert weights.sentence_objective == ("sop" if has_head else "none")
    assert weights.config == dataclasses.replace(
        TINY,
        initializer_range=0.5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    assert_state(weights, model.state_dict())
    outputs = {"hidden_states", "masked_lm_logits"}
    if has_head:
        outputs |= {"pooled_output", "sentence_logits"}
    hugging_face.write(weights, str(tmp_path / "ours"))
    assert set(verify(weights, str(tmp_path / "ours"))) == outputs


def assert_state(weights, state):
    """All weights are those of a model of transformers."""
    for weight in list_weights(weights.config, weights.sentence_objective):
        value = weights.values[weight.path]
        np.testing.assert_array_equal(
            value.T if weight.transposed else value,
            state[weight.hugging_face].float().numpy(),
            err_msg=weight.path,
        )


@pytest.mark.interop
def test_an_encoder_alone_is_read_and_gets_new_heads(tmp_path, caplog):
    """Its names have no prefix; that the heads are new is told."""
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
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_shards_of_half_precision_are_read(tmp_path, dtype):
    import torch

    model = transformers_model("AlbertForPreTraining")
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert not (tmp_path / WEIGHTS_FILE).exists()
    weights = hugging_face.read(str(tmp_path))
    assert_state(weights, model.state_dict())


@pytest.mark.interop
@pytest.mark.parametrize(
    ("name", "objective"),
    [(name, "sop") for name in MODELS]
    + [("groups", "nsp"), ("groups", "none")],
)
def test_transformers_answers_the_same(tmp_path, name, objective):
    weights = make_weights(MODELS[name], objective)
    hugging_face.write(weights, str(tmp_path))
    assert max(verify(weights, str(tmp_path)).values()) < 1e-5


@pytest.mark.interop
def test_another_model_does_not_pass_for_the_same(folder):
    """One weight of the last layer's feed-forward, by a thousandth."""
    directory, weights = folder
    path = "albert/encoder/group_1_inner_group_1_ffn/output/bias"
    changed = weights.values[path] + np.float32([0, 0, 1e-3, 0, 0, 0])
    other = dataclasses.replace(
        weights, values={**weights.values, path: changed}
    )
    with pytest.raises(UserError, match=r"which differ by up to .*e-0|0\.0"):
        verify(other, str(directory))
    nan = dataclasses.replace(
        weights, values={**weights.values, path: changed * np.float32("nan")}
    )
    with pytest.raises(UserError, match="which differ by up to nan"):
        verify(nan, str(directory))


def test_verify_needs_the_extra_and_a_local_folder(folder, monkeypatch):
    directory, weights = folder
    with pytest.raises(UserError, match=r"must be local\. Received: gs://"):
        verify(weights, "gs://bucket/folder")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"torch .* installed.*\[interop\]"):
        verify(weights, str(directory))


@pytest.mark.interop
def test_verify_refuses_weights_that_transformers_would_make_up(folder):
    directory, weights = folder
    change_tensors(directory, lambda t: t.pop("predictions.dense.bias"))
    with pytest.raises(UserError, match=r"missing_keys: predictions.dense"):
        verify(weights, str(directory))


@pytest.mark.interop
def test_transformers_loads_it_without_a_word(tmp_path, caplog):
    """The classes that users call; no missing, no unexpected weight."""
    import transformers

    weights = make_weights(MODELS["published vocabulary"])
    whole, part = tmp_path / "whole", tmp_path / "part"
    hugging_face.write(weights, str(whole))
    hugging_face.write(weights, str(part), with_sentence_head=False)
    transformers.utils.logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of their own making: PyTorch's and Python's deprecations.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for class_name, directory in (
            ("AutoModelForPreTraining", whole),
            ("AlbertForPreTraining", whole),
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
            tokenizer = getattr(transformers, class_name).from_pretrained(whole)
            pair = tokenizer(
                "Paris [MASK] Is", "Is it?", return_token_type_ids=True
            )
            ids = [2, 1162, 4, 25, 3, 25, 32, 60, 3]
            assert pair["input_ids"] == ids
            assert pair["token_type_ids"] == [0] * 5 + [1] * 4
            assert tokenizer.model_max_length == 13
            assert tokenizer.pad_token_id == 0
    assert not [r for r in caplog.records if r.levelname != "INFO"]


# --- tokenizers --------------------------------------------------------------

CORPORA = sorted(TESTDATA.glob("multilingual-*.txt")) + sorted(
    TESTDATA.glob("awkward-*.txt")
)


# The special pieces there; and what AlbertTokenizer makes one quote of.
SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>")
QUOTES = ("``", "''")


def text_lines():
    lines = []
    for path in CORPORA:
        text = path.read_bytes().decode(errors="replace")
        lines += [
            line
            for line in text.splitlines()
            if not any(spelling in line for spelling in SPECIAL + QUOTES)
        ]
    assert len(lines) > 800
    return lines


def has_marks_that_are_no_accents(line):
    """As vowels of Hindi: no combining class, but to their StripAccents."""
    return any(
        unicodedata.category(c)[0] == "M" and not unicodedata.combining(c)
        for c in unicodedata.normalize("NFKD", line)
    )


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """SentencePiece models of both kinds, of text in many scripts."""
    made = {"the published one": VOCABULARY}
    for name, settings in {
        "published": {"do_lower_case": False},
        "self-contained": {"vocabulary_kind": "self_contained"},
        "of bytes": {
            "vocabulary_kind": "self_contained",
            "do_lower_case": False,
            "byte_fallback": True,
            "character_coverage": 0.98,
        },
    }.items():
        directory = tmp_path_factory.mktemp("vocabulary")
        train_tokenizer.main(
            TokenizerConfig(
                input_file=tuple(str(p) for p in CORPORA if "multi" in p.name),
                model_prefix=str(directory / "spm"),
                vocab_size=3000,
                **settings,
            )
        )
        made[name] = str(directory / "spm.model")
    return made


def export_vocabulary(directory, vocabulary, do_lower_case):
    """A folder of a model with that vocabulary, as its run says."""
    run = directory / "run"
    run.mkdir()
    (run / "records_metadata.json").write_text(
        json.dumps({"do_lower_case": do_lower_case})
    )
    size = Tokenizer(vocabulary, do_lower_case).vocab_size
    config = dataclasses.replace(TINY, vocab_size=size)
    weights = random_weights(config, vocabulary=vocabulary)
    hugging_face.write(weights, str(directory / "folder"), run_dir=str(run))
    return directory / "folder"


@pytest.mark.interop
@pytest.mark.parametrize(
    ("name", "do_lower_case", "as_albert"),
    [
        ("the published one", True, True),
        ("published", False, False),
        ("self-contained", True, True),
        ("of bytes", False, False),
    ],
)
def test_tokenizers_of_transformers_give_the_same_ids(
    tmp_path, vocabularies, name, do_lower_case, as_albert
):
    """On text of all scripts, and such that breaks tools.

    What `AutoTokenizer` gives is the same for every vocabulary. Where
    `AlbertTokenizer` cannot, it is not the class that the folder names.
    """
    import transformers

    folder = export_vocabulary(tmp_path, vocabularies[name], do_lower_case)
    ours = Tokenizer(vocabularies[name], do_lower_case)
    lines = text_lines()
    by_classes = {"AutoTokenizer": lines}
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    assert stored["tokenizer_class"] == (
        "AlbertTokenizer" if as_albert else "PreTrainedTokenizerFast"
    )
    if as_albert:
        by_classes |= {"AlbertTokenizer": lines, "AlbertTokenizerFast": lines}
    if ours.kind == "published" and as_albert:
        # The AlbertTokenizer of transformers 5 has a pipeline of its own.
        lines = [x for x in lines if not has_marks_that_are_no_accents(x)]
        assert len(lines) > 700
        by_classes = dict.fromkeys(by_classes, lines)

    for class_name, compared in by_classes.items():
        theirs = getattr(transformers, class_name).from_pretrained(folder)
        expected = encode(ours, compared)
        found = theirs(compared, add_special_tokens=False)["input_ids"]
        for line, a, b in zip(compared, found, expected, strict=True):
            # Where scores are equal: "00", "0" for "0", "00".
            assert sorted(a) == sorted(b), (class_name, line)
            assert spell(ours, a) == spell(ours, b), (class_name, line)
        differing = sum(a != b for a, b in zip(found, expected, strict=True))
        assert differing <= 0.02 * len(compared), class_name


def encode(tokenizer, lines):
    encoded = tokenizer.encode_batch(lines)
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.ends[:-1])]


def spell(tokenizer, ids):
    return "".join(map(tokenizer.id_to_piece, ids))


def test_case_is_what_the_run_says(tmp_path, vocabularies):
    folder = export_vocabulary(tmp_path, vocabularies["published"], False)
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    assert stored["do_lower_case"] is False


@pytest.mark.parametrize(
    ("name", "do_lower_case", "is_told"),
    [
        ("published", False, True),
        ("published", True, False),
        ("of bytes", False, False),  # it says so itself
    ],
)
def test_a_vocabulary_that_keeps_upper_case_is_told(
    tmp_path, vocabularies, caplog, name, do_lower_case, is_told
):
    """Since a folder read is a model without records, which would say so."""
    folder = export_vocabulary(tmp_path, vocabularies[name], do_lower_case)
    hugging_face.read(str(folder))
    assert ("KEEPS UPPER CASE" in caplog.text) == is_told


# --- the card ----------------------------------------------------------------


def test_the_card_tells_the_data_settings_and_figures(tmp_path, tiny_records):
    """Of the run, and of the last evaluation that is not after the step."""
    config = tiny_run.make_config(tiny_records, tmp_path / "run")
    run_dir = config.training.output_dir
    run_directory.write_config(run_dir, config)
    metadata = (tiny_records / "train" / "metadata.json").read_text()
    (tmp_path / "run" / "records_metadata.json").write_text(metadata)
    lines = [
        {"split": "eval", "step": 8, "masked_lm_loss": 5.51234},
        {"split": "train", "step": 8, "masked_lm_loss": 7.7777},
        {"split": "eval", "step": 12, "masked_lm_loss": 4.4},
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    weights = random_weights(config.model, step=8)
    folder = tmp_path / "folder"
    hugging_face.write(weights, str(folder), run_dir, licence="cc-by-sa-4.0")

    card = (folder / "README.md").read_text()
    fields, text = card.removeprefix("---\n").split("---\n", 1)
    assert "license: cc-by-sa-4.0\n" in fields
    metadata = json.loads(metadata)
    for told in (
        f"{weights.num_parameters:,} parameters",
        "for 8 steps",
        "| hidden_size | 16 |",
        f"| documents | {metadata['num_documents']} |",
        f"| SHA-256 of the vocabulary | {metadata['vocabulary_sha256']} |",
        "| optimizer | lamb |",
        "| learning_rate | 0.02 |",
        "| sentence_objective | sop |",
        "| masked_lm_loss | 5.5123 |",
        "after 8 steps",
    ):
        assert told in text
    assert "4.4" not in text
    assert "7.7777" not in text


def test_a_card_says_what_is_not_known(folder):
    card = (folder[0] / "README.md").read_text()
    assert card.startswith("---\nlicense: unknown\n")
    assert "## Data\n\nUnknown.\n" in card
    assert "## Evaluation\n\nUnknown.\n" in card
    assert "not stated at export" in card


# --- what is refused ---------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "gelu_new, the tanh app.*v1 models say gelu"),
        ({"hidden_act": "swish"}, 'hidden_act .* one of .*Received: "swish"'),
        ({"hidden_act": ["tanh"]}, r'one of .*Received: \["tanh"\]'),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps .* 1e-12.*Received: 1e-05"),
        ({"model_type": "bert"}, 'model_type .* "albert".*Received: "bert"'),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"sentence_objective": "mlm"}, 'sop, nsp, none. Received: "mlm"'),
        ({"hidden_size": 7}, "divisible by num_attention_heads"),
        ({"hidden_size": 8}, r"shape \[6\], not \[8\] as in config.json"),
        ({"vocab_size": 12}, r"shape \[11, 4\], not \[12, 4\]"),
        ({"hidden_size": "6"}, "hidden_size"),
        ({"num_hidden_layers": 44, "num_hidden_groups": 20}, "layer 33 of 44"),
    ],
)
def test_an_architecture_that_is_not_ours_is_refused(folder, changes, message):
    directory, _ = folder
    change_config(directory, **changes)
    with pytest.raises(UserError, match=message):
        hugging_face.read(str(directory))


@pytest.mark.parametrize("theirs", ["gelu_pytorch_tanh", "gelu_fast"])
def test_other_names_of_gelu_by_tanh_are_known(folder, theirs):
    directory, weights = folder
    change_config(directory, hidden_act=theirs)
    assert hugging_face.read(str(directory)).config == weights.config


@pytest.mark.interop
def test_what_config_json_leaves_out_means_what_it_means_there():
    """The defaults of their AlbertConfig, an xxlarge."""
    import transformers

    theirs = transformers.AlbertConfig().to_dict()
    assert {name: theirs[name] for name in SHARED_SETTINGS} == SHARED_SETTINGS


def test_what_config_json_leaves_out_is_not_our_default(folder):
    directory, _ = folder
    (directory / CONFIG_FILE).write_text('{"model_type": "albert"}')
    with pytest.raises(
        UserError, match=r"\[11, 4\], not \[30000, 128\] as in config.json"
    ):
        hugging_face.read(str(directory))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("albert.pooler.bias"),
            "albert.pooler.bias is missing",
        ),
        (
            lambda t: t.update(more=np.zeros(2, np.float32)),
            "more is unknown",
        ),
        (
            lambda t: t.update({"albert.pooler.bias": np.zeros(6, np.int32)}),
            "albert.pooler.bias .* floating-point numbers. Received: I32",
        ),
        (
            lambda t: t.update({"predictions.decoder.bias": np.ones(11)}),
            "predictions.decoder.bias .* must equal predictions.bias",
        ),
    ],
)
def test_weights_of_another_model_are_refused(folder, change, message):
    directory, _ = folder
    change_tensors(directory, change)
    with pytest.raises(UserError, match=message):
        hugging_face.read(str(directory))


def test_a_projection_that_we_have_not_is_refused(tmp_path):
    weights = make_weights(MODELS["E is H"])
    hugging_face.write(weights, str(tmp_path))
    name = "albert.encoder.embedding_hidden_mapping_in"
    for part, value in (
        ("bias", np.float32([0, 0, 0, 1e-3, 0, 0])),
        ("weight", 2 * np.eye(6, dtype=np.float32)),
    ):
        shutil.copytree(tmp_path, tmp_path / part)
        change_tensors(
            tmp_path / part,
            lambda t, part=part, value=value: t.update(
                {f"{name}.{part}": value}
            ),
        )
        with pytest.raises(UserError, match="must be the identity"):
            hugging_face.read(str(tmp_path / part))


def test_names_that_are_tied_or_constant_are_passed_over(folder):
    """As older versions of transformers wrote them."""
    directory, weights = folder
    words = weights.values["albert/embeddings/word_embeddings"]
    bias = weights.values["albert/masked_lm/output_bias"]

    def change(tensors):
        tensors["albert.embeddings.position_ids"] = np.arange(7)[np.newaxis]
        tensors["predictions.decoder.weight"] = words
        tensors["predictions.decoder.bias"] = bias
        del tensors["predictions.bias"]  # one of the two does

    change_tensors(directory, change)
    assert_equal(hugging_face.read(str(directory)), weights)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(folder, kept):
    path = folder[0] / WEIGHTS_FILE
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    with pytest.raises(
        UserError,
        match=f"must be a complete safetensors .*: {len(content):,} byte",
    ):
        hugging_face.read(str(folder[0]))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"]
)
def test_formats_that_can_run_code_are_refused_by_name(folder, name):
    directory, _ = folder
    (directory / WEIGHTS_FILE).rename(directory / name)
    with pytest.raises(UserError, match=f"Received: {name}.* can run code"):
        hugging_face.read(str(directory))
    (directory / name).unlink()
    with pytest.raises(UserError, match=r"model.safetensors. Received: none"):
        hugging_face.read(str(directory))


@pytest.mark.parametrize(
    "name",
    [
        "../folder/model-1.safetensors",
        "/etc/passwd.safetensors",
        "sub/model-1.safetensors",
        "..\\model-1.safetensors",
        "model-1.bin",
        None,
    ],
)
def test_an_index_names_files_beside_it_alone(folder, name):
    directory, weights = folder
    (directory / WEIGHTS_FILE).rename(directory / "model-1.safetensors")
    index = directory / INDEX_FILE
    index.write_text('{"weight_map": {"any": "model-1.safetensors"}}')
    assert_equal(hugging_face.read(str(directory)), weights)
    index.write_text(json.dumps({"weight_map": {"any": name}}))
    with pytest.raises(UserError, match=r"\.safetensors files in its own"):
        hugging_face.read(str(directory))
    index.write_text('{"weight_map": {"any": "model-2.safetensors"}}')
    with pytest.raises(UserError, match=r"model-2.* must exist"):
        hugging_face.read(str(directory))
    index.write_text("[]")
    with pytest.raises(UserError, match="weight_map"):
        hugging_face.read(str(directory))


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    weights = make_weights()
    with pytest.raises(UserError, match="30000 pieces and vocab_size 11"):
        hugging_face.write(
            dataclasses.replace(weights, vocabulary=VOCABULARY),
            str(tmp_path / "new"),
        )
    assert not (tmp_path / "new").exists()


def test_groups_that_transformers_counts_otherwise_are_refused(tmp_path):
    """Of 44 layers in 20 groups, int(33 / (44 / 20)) is 14, not 15."""
    assert int(33 / (44 / 20)) == 14
    config = dataclasses.replace(
        TINY, num_hidden_layers=44, num_hidden_groups=20
    )
    with pytest.raises(
        UserError, match="layer 33 of 44, with 20 groups, is in group 14"
    ):
        hugging_face.write(make_weights(config), str(tmp_path))
