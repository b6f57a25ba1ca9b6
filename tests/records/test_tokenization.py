import gzip
import io
import pathlib

import numpy as np
import pytest
import sentencepiece
import tensorflow_text

from albert_tf.errors import UserError
from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID, UNK_ID
from albert_tf.records.tokenization import Tokenizer, normalize

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


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
    assert encoded.word_starts.tolist() == [True, True, False, True, True]


def test_a_number_within_a_word_gets_no_word_mark(tmp_path):
    """The piece "9," begins no word. The model encodes "9" as "▁" and "9", so
    the mark must be removed. The piece "▁ab7," keeps its mark."""
    model = train(
        tmp_path / "commas.model",
        ["ab7, ab 9, a b ,"] * 9,
        user_defined_symbols=["9,", "▁ab7,", "9", "7", "▁ab"],
        vocab_size=40,
    )
    plain = sentencepiece.SentencePieceProcessor(model_file=model)
    assert plain.encode("b9,", out_type=str)[-1:] == ["9,"]
    assert plain.encode("9", out_type=str) == ["▁", "9"]
    assert plain.encode("ab7,", out_type=str) == ["▁ab7,"]
    tokenizer = Tokenizer(model)
    assert pieces_of(tokenizer, "b9,")[-3:] == ["b", "9", ","]
    assert pieces_of(tokenizer, "ab7,") == ["▁ab", "7", ","]


def test_a_number_joined_to_its_word_mark_loses_the_mark(tmp_path):
    """Here the model encodes "9" as one piece, "▁9"."""
    model = train(
        tmp_path / "joined.model",
        ["b9,a 9 a b ,"] * 9,
        user_defined_symbols=["9,", "▁9", "9"],
        vocab_size=40,
    )
    plain = sentencepiece.SentencePieceProcessor(model_file=model)
    assert plain.encode("9", out_type=str) == ["▁9"]
    assert pieces_of(Tokenizer(model), "b9,")[1:] == ["9", ","]


def test_ids_agree_with_tensorflow_text(vocabulary_file, tokenizer):
    """On real text. tensorflow-text does not split commas off numbers, so lines
    with such pieces are left out."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        lines = [
            normalize(line) for line, _ in zip(file, range(3000), strict=False)
        ]
    lines = [line for line in lines if line]
    other = tensorflow_text.SentencepieceTokenizer(
        pathlib.Path(vocabulary_file).read_bytes()
    )
    expected = other.tokenize(lines).to_list()
    encoded = tokenizer.encode_normalized(lines)
    found = np.split(encoded.ids, encoded.ends[:-1])
    num_compared = 0
    for theirs, ours in zip(expected, found, strict=True):
        pieces = [tokenizer.id_to_piece(i) for i in theirs]
        if not any(p[-2:-1].isdigit() and p[-1] == "," for p in pieces):
            assert ours.tolist() == theirs
            num_compared += 1
    assert num_compared > 2000


def test_control_symbols_in_text_are_plain_text(tokenizer):
    ids = tokenizer.encode_batch(["[CLS] a [SEP] [MASK] <pad> <unk>"]).ids
    assert not set(ids.tolist()) & {0, CLS_ID, SEP_ID, MASK_ID}


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
    "text",
    ["我爱北京天安门", "ひらカタカナ", "ภาษาไทย", "ພາສາລາວ", "ភាសា", "မြန်မာ"],
)
def test_every_piece_begins_a_word_in_scripts_without_spaces(tmp_path, text):
    """Each character is a piece here, so each begins a word."""
    model = train(
        tmp_path / "chars.model",
        [text, "abc abc"] * 5,
        model_type="char",
        vocab_size=60,
        character_coverage=1.0,
    )
    tokenizer = Tokenizer(model)
    encoded = tokenizer.encode_batch([text, "abc"])
    starts = np.split(encoded.word_starts, encoded.ends[:-1])
    assert UNK_ID not in encoded.ids
    assert starts[0].all() and len(starts[0]) >= 5
    assert starts[1].tolist() == [True, False, False, False]


def test_a_vocabulary_with_other_special_ids_is_refused(tmp_path):
    model = train(
        tmp_path / "other.model",
        ["a b c"] * 9,
        vocab_size=16,
        pad_id=3,
        bos_id=0,
    )
    with pytest.raises(UserError, match=r"first pieces.*<s> <unk>"):
        Tokenizer(model)


def test_a_vocabulary_with_other_control_symbols_is_refused(tmp_path):
    """Masking could draw them as random replacements."""
    model = train(
        tmp_path / "more.model",
        ["a b c"] * 9,
        vocab_size=16,
        control_symbols=["[CLS]", "[SEP]", "[MASK]", "[unused1]"],
    )
    with pytest.raises(UserError, match=r"\[unused1\]"):
        Tokenizer(model)


def test_an_error_names_a_missing_vocabulary(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.model.*train_tokenizer"):
        Tokenizer(str(tmp_path / "nowhere.model"))


def test_an_error_names_a_file_that_is_not_a_model(tmp_path):
    (tmp_path / "text.model").write_text("no model")
    with pytest.raises(UserError, match=r"text.model must be a SentencePiece"):
        Tokenizer(str(tmp_path / "text.model"))
