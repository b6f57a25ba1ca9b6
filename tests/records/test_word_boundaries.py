import gzip
import io
import pathlib

import numpy as np
import pytest
import sentencepiece

from albert_tf.config import MaskingConfig
from albert_tf.io.tfrecord import read_records
from albert_tf.records.features import SPECIAL_PIECES
from albert_tf.records.masking import mask_rows
from albert_tf.records.tokenization import Tokenizer
from albert_tf.records.word_boundaries import WordBoundaries
from tests.helpers.inspected_records import read_features

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


def boundaries_of(tokens):
    """The boundaries of a vocabulary of these pieces, and the ids."""
    pieces = [*SPECIAL_PIECES, *tokens.split()]
    values = [
        int(piece[1:-1], 16) if piece.startswith("<0x") else -1
        for piece in pieces
    ]
    ids = np.arange(len(SPECIAL_PIECES), len(pieces))
    return WordBoundaries(pieces, values), ids


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [
        # The rule of google-research/albert.
        ("▁night .", "11"),
        ("▁( t ia )", "1001"),
        ("▁well - known", "110"),
        ("▁don ' t", "110"),
        ("▁it 's", "11"),
        ("▁no !! < br >", "10101"),
        ("▁a € b £ …", "11011"),
        # Digits and other scripts continue a word.
        ("▁20 11 5% 99", "1000"),
        ("▁1 , 000", "110"),
        ("▁н ет ё ß", "1000"),
        ("▁कम ि ल ।", "1001"),
        ("▁한 국", "10"),
        # Each piece is a word, and what follows it begins one.
        ("▁ 我 gp t 4 型 12 34 月", "111001101"),
        ("▁ 我 。 gp t", "11110"),
        ("▁我 a 们 我a b", "11110"),
        ("▁ ภา ษา ไ ท", "11111"),
        ("▁བོད ་ ཡིག ༌ གི", "11111"),
        ("▁ ꦗꦮ ꦶ ᬩ ꀀ ᦀ ᨠ ꪀ ᥐ ㄅ 𛀁 ー 𠀀 𒀀", "1" * 14),
        # The Ethiopic word space.
        ("▁ሰ ላም ፡ ለ ዓለም", "10110"),
        ("▁ሰ ላም፡ለ ዓ ለም፡ ከ", "11001"),
        # The bytes of U+6211, of a letter, of U+0E01, U+0915 and U+20000.
        ("▁a <0xE6> <0x88> <0x91> b c", "110010"),
        ("▁ <0xE0> <0xB8> <0x81> <0xE0> <0xB8> <0x81>", "1100100"),
        ("▁ <0xE0> <0xA4> <0x95> <0xC3> <0xA9> <0x41> <0x2E>", "10000001"),
        ("▁ <0xF0> <0xA0> <0x80> <0x80> 1 2", "1100010"),
        # U+1F680, a sign, and a character that lacks its last bytes.
        ("▁a <0xF0> <0x9F> <0x9A> <0x80> b <0xE6> <0x88>", "11000010"),
    ],
)
def test_a_word_begins_where_expected(tokens, starts):
    words, ids = boundaries_of(tokens)
    found = "".join(map(str, words.find(ids).astype(int)))
    assert found == starts
    # The shape does not matter, and a special token is no character.
    row = np.concatenate([[2], ids, [3, 2], ids, [3, 0]])
    found = "".join(map(str, words.find(row[np.newaxis])[0].astype(int)))
    assert found == f"1{starts}11{starts}10"


def test_a_segment_is_not_cut_before_a_sign():
    words, ids = boundaries_of("▁so ( 我 。 gp … ▁. <0xE6> 1 .")
    assert "".join(map(str, words.find_cuts(ids).astype(int))) == "1010101110"


def read_google_records():
    """Original ids and `token_boundary`, int64, `(records, tokens)`."""
    ids, boundaries = [], []
    with gzip.open(TESTDATA / "google-records-20.tfrecord.gz") as file:
        for record in read_records(file):
            row = {
                name: np.array(values)
                for name, values in read_features(record.content).items()
            }
            is_slot = row["masked_lm_weights"] > 0
            masked = row["masked_lm_positions"][is_slot]
            row["input_ids"][masked] = row["masked_lm_ids"][is_slot]
            ids.append(row["input_ids"])
            boundaries.append(row["token_boundary"])
    return np.array(ids), np.array(boundaries)


def test_words_are_those_of_google_research_albert(tokenizer):
    """Only pieces that begin with a digit differ."""
    ids, boundaries = read_google_records()
    differs = tokenizer.words.find(ids) != boundaries
    pieces = [tokenizer.id_to_piece(i) for i in ids[differs].tolist()]
    assert len(ids) == 20 and np.count_nonzero(ids) > 5000
    assert len(pieces) == 39
    assert all(piece[0].isdigit() for piece in pieces)


# First and last letter of some scripts, and what separates words of letters.
SCRIPTS = {
    "Tibetan": ("\u0f40", "\u0f6a", "\u0f0b"),
    "Bopomofo": ("\u3105", "\u312f", ""),
    "Ethiopic": ("\u1200", "\u1246", "\u1361"),
    "Han extension B": ("\U00020000", "\U00020040", ""),
    "Chinese with Latin": ("\u4e00", "\u4e40", "gpt4"),
    "Thai": ("\u0e01", "\u0e2e", ""),
    "Cuneiform": ("\U00012000", "\U00012040", ""),
    "Cyrillic": ("\u0430", "\u044f", " "),
}


def made_up_lines(script):
    """Lines of 60 random letters, with a separator after some of them."""
    first, last, separator = SCRIPTS[script]
    rng = np.random.default_rng(0)
    letters = rng.integers(ord(first), ord(last) + 1, (200, 60))
    return [
        "".join(chr(c) + separator * (i % 4 == 3) for i, c in enumerate(line))
        for line in letters.tolist()
    ]


@pytest.fixture(scope="module", params=["pieces", "bytes"])
def many_scripts(request, tmp_path_factory):
    """A vocabulary of all scripts, and one that spells them in bytes."""
    texts = [line for script in SCRIPTS for line in made_up_lines(script)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts if request.param == "pieces" else "ab cd"),
        model_writer=model,
        vocab_size=4000,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("scripts") / "spm.model"
    path.write_bytes(model.getvalue())
    return Tokenizer(str(path))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_fraction_of_masked_tokens_is_that_of_the_settings(
    many_scripts, script
):
    """19 of 127 tokens, or 15 %; words of 12 bytes seldom fit exactly."""
    tokens = many_scripts.encode_batch(made_up_lines(script)).ids
    tokens = tokens[: len(tokens) // 125 * 125].reshape(-1, 125)
    ids = np.pad(tokens, ((0, 0), (1, 1)), constant_values=3)
    words = many_scripts.words.find(ids)
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    masked = mask_rows(
        rows | {"token_boundary": words},
        np.arange(len(ids), dtype=np.uint64)[:, np.newaxis],
        many_scripts.vocab_size,
        MaskingConfig(max_predictions_per_seq=20),
    )
    fraction = masked["masked_lm_weights"].sum() / ids.size
    assert 0.135 < fraction < 0.151
