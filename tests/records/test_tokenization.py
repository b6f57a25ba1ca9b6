import io
import itertools
import json
import shutil

import numpy as np
import pytest
import sentencepiece

from albert_tf.errors import UserError
from albert_tf.records.features import CLS_ID, MASK_ID, PAD_ID, SEP_ID
from albert_tf.records.tokenization import Tokenizer, encode, normalize


def train(path, sentences, **options):
    """Trains a small SentencePiece model and returns its path."""
    model = io.BytesIO()
    settings = {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        **{**settings, **options},
    )
    path.write_bytes(model.getvalue())
    return str(path)


def pieces_of(tokenizer, text):
    ids = tokenizer.encode_batch([text]).ids
    return [tokenizer.id_to_piece(i) for i in ids]


def test_text_is_normalised_as_in_google_research_albert():
    """White space, full-width letters, accents and case."""
    assert normalize(" \tÉCOLE \n\u3000 \uff21\uff22 ﬁn ") == "ecole ab fin"
    assert normalize("École", do_lower_case=False) == "Ecole"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # The model alone returns the piece "▁2011,".
        ("in 2011, we", ["▁in", "▁2011", ",", "▁we"]),
        ("1, 5,", ["▁1", ",", "▁5", ","]),
        # The vocabulary has no piece that ends in one of these commas.
        ("5,000, we", ["▁5,000", ",", "▁we"]),
        ("a, b", ["▁a", ",", "▁b"]),
    ],
)
def test_commas_are_split_off_numbers(tokenizer, text, pieces):
    assert pieces_of(tokenizer, text) == pieces


def test_ids_are_line_numbers_of_the_vocabulary_file(tokenizer):
    """Lines of 30k-clean.vocab of google-research/albert, counted from 0."""
    encoded = tokenizer.encode_batch(["in 2011, we", "", "the"])
    assert encoded.ids.tolist() == [19, 542, 15, 95, 14]
    assert encoded.ends.tolist() == [4, 4, 5]


@pytest.mark.parametrize(
    ("text", "symbols", "of_the_model", "ours"),
    [
        # The model encodes "9" as "▁" and "9", or as "▁9": without the mark.
        ("b9,", ["9,", "9"], ["9,"], ["9", ","]),
        ("b9,", ["9,", "▁9", "9"], ["9,"], ["9", ","]),
        # This piece begins a word, and keeps its mark.
        ("ab7,", ["▁ab7,", "7", "▁ab"], ["▁ab7,"], ["▁ab", "7", ","]),
    ],
)
def test_a_number_within_a_word_gets_no_word_mark(
    tmp_path, text, symbols, of_the_model, ours
):
    model = train(
        tmp_path / "commas.model",
        ["ab7, ab 9 b9,a, a b ,"] * 9,
        user_defined_symbols=symbols,
        vocab_size=40,
    )
    plain = sentencepiece.SentencePieceProcessor(model_file=model)
    assert plain.encode(text, out_type=str)[-1:] == of_the_model
    pieces = pieces_of(Tokenizer(model), text)
    assert pieces[-len(ours) :] == ours


def test_encode_with_masks_converts_mask_spellings_to_mask_tokens(tokenizer):
    """After [MASK], a word begins only after white space."""
    ids = tokenizer.encode_with_masks("The [MASK]s [MASK]. [MASK] café[MASK]")
    assert [tokenizer.id_to_piece(i) for i in ids] == [
        "▁the",
        "[MASK]",
        "s",
        "[MASK]",
        ".",
        "[MASK]",
        "▁cafe",
        "[MASK]",
    ]


@pytest.mark.parametrize(
    ("name", "settings", "stored"),
    [
        ("spm.json", {"settings": {"do_lower_case": False}}, False),
        ("spm.json", {"settings": {"do_lower_case": True}}, True),
        ("spm.json", {"settings": {}}, None),
        ("spm.json", [1], None),
        # Of another model.
        (
            "spm.json",
            {"model_sha256": "a", "settings": {"do_lower_case": False}},
            None,
        ),
        ("tokenizer_config.json", {"do_lower_case": False}, False),
    ],
)
def test_lower_casing_is_read_from_the_file_next_to_a_model(
    vocabulary_file, tmp_path, name, settings, stored
):
    model = "spm" if name == "spm.json" else "spiece"
    path = shutil.copy(vocabulary_file, f"{tmp_path}/{model}.model")
    (tmp_path / name).write_text(json.dumps(settings))
    assert Tokenizer(path).do_lower_case is (stored is not False)
    for value in (True, False):
        if stored in (None, value):
            assert Tokenizer(path, value).do_lower_case is value
        else:
            with pytest.raises(UserError, match=f"as .*{name} says"):
                Tokenizer(path, value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"pad_id": 3, "bos_id": 0}, r"first pieces.*<s> <unk>"),
        # Masking could draw it as a random replacement.
        (
            {"control_symbols": ["[CLS]", "[SEP]", "[MASK]", "[unused1]"]},
            r"\[unused1\]",
        ),
        # Text would hold special ids.
        (
            {
                "control_symbols": ["[CLS]"],
                "user_defined_symbols": ["[SEP]", "[MASK]"],
            },
            r"Received: \[SEP\] \[MASK\] of another type",
        ),
        ({"treat_whitespace_as_suffix": True}, "beginning of each word"),
        ({"add_dummy_prefix": False}, "the first one included.*a.b for"),
        (b"no model", r"spm\.model must be a SentencePiece"),
    ],
)
def test_other_vocabularies_are_refused(tmp_path, model, message):
    path = tmp_path / "spm.model"
    if isinstance(model, dict):
        train(path, ["a b c"] * 9, vocab_size=16, **model)
    else:
        path.write_bytes(model)
    with pytest.raises(UserError, match=message):
        Tokenizer(str(path))


# --- inputs of a model -------------------------------------------------------


def test_special_tokens_surround_the_texts(tokenizer):
    """Ids of the vocabulary of google-research/albert, by hand."""
    inputs = encode(tokenizer, ["[MASK]", "[MASK][MASK]"], ["", "[MASK]"])
    assert inputs.input_ids.tolist() == [
        [CLS_ID, MASK_ID, SEP_ID, SEP_ID, PAD_ID, PAD_ID],
        [CLS_ID, MASK_ID, MASK_ID, SEP_ID, MASK_ID, SEP_ID],
    ]
    assert inputs.input_mask.tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert inputs.segment_ids.tolist() == [
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_string_is_one_text_and_a_list_may_be_empty(tokenizer):
    for one, other in zip(
        encode(tokenizer, "Rome is", "a city"),
        encode(tokenizer, ["Rome is"], ["a city"]),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert [array.shape for array in encode(tokenizer, [])] == [(0, 0)] * 3
    for texts, pairs in itertools.permutations([["a"], ["a", "b"]]):
        with pytest.raises(ValueError):
            encode(tokenizer, texts, pairs)


@pytest.mark.parametrize(("pairs", "smallest"), [(None, 2), (["b"], 3)])
def test_a_length_without_room_for_special_tokens_is_refused(
    tokenizer, pairs, smallest
):
    inputs = encode(tokenizer, ["a"], pairs, smallest)
    assert inputs.input_ids.shape == (1, smallest)
    with pytest.raises(ValueError, match=f"must be at least {smallest}, for"):
        encode(tokenizer, ["a"], pairs, smallest - 1)
