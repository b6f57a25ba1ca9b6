"""Vocabularies whose model normalises text itself."""

import pathlib

import numpy as np
import pytest
import sentencepiece
import tensorflow_text

from albert_tf.errors import UserError
from albert_tf.records.features import UNK_ID
from albert_tf.records.tokenization import Tokenizer, normalize
from tests.helpers.small_vocabularies import MULTILINGUAL, train

GOOGLE_ALBERT = "tests/testdata/30k-clean.model"

AWKWARD = [
    "",
    " \t ",
    "\u0301",
    " \u0301 \xa8 x",
    "a\u200bb\u200cc\u3000d\u2581e",
    "\uff21\uff22\uff08\u00bd\uff09 \ufb01\u00df \u0130I\u0131",
    "E\u0301COLE \u1e69 s\u0323\u0307 \x07bell\x80\ufeff",
    "in 2011, 5,000 and 1,2,3, we",
    "\u3131\u314f \ud55c\uae00 \u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea \u9f98",
]


@pytest.fixture(scope="module")
def lines():
    """Real text in eight languages, and rare characters."""
    text = [pathlib.Path(path).read_text("utf-8") for path in MULTILINGUAL]
    return [*"\n".join(text).splitlines(), *AWKWARD]


@pytest.fixture(scope="module")
def self_contained(tmp_path_factory):
    """A model by (do_lower_case, byte_fallback)."""
    directory = tmp_path_factory.mktemp("self_contained")
    paths = {}
    for case in ((True, True), (False, False)):
        prefix = directory / f"spm-{case[0]}"
        train(
            MULTILINGUAL,
            prefix,
            vocabulary_kind="self_contained",
            do_lower_case=case[0],
            byte_fallback=case[1],
            vocab_size=2600,
        )
        paths[case] = f"{prefix}.model"
    return paths


CASES = [(True, True), (False, False)]


def split_ids(encoded):
    return [part.tolist() for part in np.split(encoded.ids, encoded.ends[:-1])]


@pytest.mark.parametrize("case", CASES)
def test_every_runtime_gives_the_ids_of_a_self_contained_model(
    self_contained, lines, case
):
    """tensorflow-text and SentencePiece return our ids for raw text."""
    path = self_contained[case]
    tokenizer = Tokenizer(path)
    assert (tokenizer.kind, tokenizer.do_lower_case) == (
        "self_contained",
        case[0],
    )
    ours = split_ids(tokenizer.encode_batch(lines))
    theirs = tensorflow_text.SentencepieceTokenizer(
        pathlib.Path(path).read_bytes()
    )
    assert ours == theirs.tokenize(lines).to_list()
    plain = sentencepiece.SentencePieceProcessor(model_file=path)
    assert ours == plain.encode(lines)
    # The test is not trivial: normalisation changes the text.
    assert sum(map(len, ours)) > 20_000
    assert any(normalize(line, case[0]) != line for line in lines)


@pytest.mark.interop
def test_hugging_face_gives_the_ids_of_a_self_contained_model(
    self_contained, lines
):
    """The tokenizer is built as Hugging Face converts SentencePiece models."""
    import tokenizers
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    path = self_contained[True, True]
    proto = ModelProto.FromString(pathlib.Path(path).read_bytes())
    other = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            [(piece.piece, piece.score) for piece in proto.pieces],
            unk_id=UNK_ID,
            byte_fallback=True,
        )
    )
    other.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Precompiled(
                proto.normalizer_spec.precompiled_charsmap
            ),
            tokenizers.normalizers.Strip(),
            tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    other.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme="always"
    )
    ours = split_ids(Tokenizer(path).encode_batch(lines))
    theirs = [encoding.ids for encoding in other.encode_batch(lines)]
    # If a number such as "000" has two segmentations of equal score, it chooses
    # the other one.
    differing = [
        line
        for line, a, b in zip(lines, ours, theirs, strict=True)
        if sorted(a) != sorted(b)
    ]
    assert differing == []


@pytest.mark.parametrize("case", CASES)
def test_text_is_normalised_as_for_google_albert(self_contained, lines, case):
    """Except Hangul letters typed one by one, which are not composed, and
    control characters."""
    tokenizer = Tokenizer(self_contained[case])
    published = sentencepiece.SentencePieceProcessor(model_file=GOOGLE_ALBERT)
    num_compared = 0
    for line in lines:
        if not set(line) & set("\u3131\u1112\x80"):
            expected = published.normalize(normalize(line, case[0]))
            assert "▁" + tokenizer.normalize(line).replace(" ", "▁") == (
                expected or "▁"
            )
            num_compared += 1
    assert num_compared == len(lines) - 2
    assert tokenizer.normalize("\u1112\u1161") == "\u1112\u1161"


@pytest.mark.parametrize("case", CASES)
def test_normalised_text_has_the_ids_of_raw_text(self_contained, lines, case):
    tokenizer = Tokenizer(self_contained[case])
    normalized = [tokenizer.normalize(line) for line in lines]
    assert [tokenizer.normalize(line) for line in normalized] == normalized
    plain = sentencepiece.SentencePieceProcessor(
        model_file=self_contained[case]
    )
    assert split_ids(tokenizer.encode_normalized(normalized)) == plain.encode(
        lines
    )
    assert not any(line != line.strip() for line in normalized)


def test_model_decides_do_lower_case(self_contained):
    cased, uncased = self_contained[False, False], self_contained[True, True]
    assert Tokenizer(cased, False).normalize("Ä B") == "A B"
    assert Tokenizer(uncased, True).normalize("Ä B") == "a b"
    with pytest.raises(UserError, match=r"--do_lower_case=false"):
        Tokenizer(cased, True)
    with pytest.raises(UserError, match=r"--do_lower_case=true"):
        Tokenizer(uncased, False)


def test_text_with_masks_is_encoded_by_a_self_contained_model(self_contained):
    """The text between masks is normalised, and its words are kept."""
    tokenizer = Tokenizer(self_contained[True, True])
    ids = tokenizer.encode_with_masks("国[MASK]Ü [MASK], [MASK] \u9f98")
    assert [tokenizer.id_to_piece(i) for i in ids] == [
        "▁",
        "国",
        "[MASK]",
        "u",
        "[MASK]",
        ",",
        "[MASK]",
        "▁",
        "<0xE9>",
        "<0xBE>",
        "<0x98>",
    ]


def test_uncovered_characters_are_spelled_as_bytes(self_contained):
    """Characters of scripts without spaces begin words, others do not."""
    tokenizer = Tokenizer(self_contained[True, True])
    encoded = tokenizer.encode_batch(["国\u9f98", "a\u03e9", "a\U0001f680"])
    pieces = [tokenizer.id_to_piece(i) for i in encoded.ids]
    starts = dict(zip(pieces, encoded.word_starts.tolist(), strict=True))
    # UTF-8 by hand: U+9F98, U+03E9, U+1F680.
    for expected in (
        {"<0xE9>": True, "<0xBE>": False, "<0x98>": False},
        {"<0xCF>": False, "<0xA9>": False},
        {"<0xF0>": False, "<0x9F>": False, "<0x9A>": False, "<0x80>": False},
    ):
        assert expected.items() <= starts.items()
    assert UNK_ID not in encoded.ids
    begin = {
        tokenizer.id_to_piece(i)
        for i in range(tokenizer.vocab_size)
        if tokenizer.starts_word[i] and "<0x" in tokenizer.id_to_piece(i)
    }
    # This range includes Kana and Han. Yi, at U+A000, has spaces.
    han = {chr(c).encode()[0] for c in range(0x3000, 0xA000)}
    assert begin == {f"<0x{byte:X}>" for byte in han}
    without = Tokenizer(self_contained[False, False])
    assert UNK_ID in without.encode_batch(["\u9f98"]).ids
    assert not any("<0x" in without.id_to_piece(i) for i in range(2600))


def test_equal_text_gives_an_equal_self_contained_model(
    self_contained, tmp_path
):
    """Each training has another path of the normalisation rules."""
    again = train(
        MULTILINGUAL,
        tmp_path / "spm",
        vocabulary_kind="self_contained",
        byte_fallback=True,
        vocab_size=2600,
    )
    assert again == pathlib.Path(self_contained[True, True]).read_bytes()
