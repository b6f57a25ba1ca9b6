"""Builds from unusual text: they succeed, or an error names file and line."""

import glob
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records.features import SPECIAL_PIECES, read_metadata
from albert_tf.records.tokenization import Tokenizer
from data_prep import build_tfrecords
from data_prep.config import RecordsConfig

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
VOCABULARY = str(TESTDATA / "30k-clean.model")
LENGTH, PREDICTIONS = 48, 8
CLS, SEP, MASK = 2, 3, 4

VALID_UTF8 = ["awkward-blns", "awkward-empty-documents"] + [
    f"multilingual-{language}"
    for language in ("ar", "de", "hi", "ko", "ru", "th", "vi", "zh")
]
# The last one is CESU-8: two surrogates of three bytes encode U+1F600.
INVALID_UTF8 = {
    "awkward-latin1-crlf": r"0xe0 in line 9, at byte offset 598",
    "awkward-big5-bytes": r"0xbd in line 4, at byte offset 747",
    "surrogates": r"0xed in line 3, at byte offset 25",
}


def read_invalid(name):
    if name == "surrogates":
        return b"A few words.\nOne line.\nA \xed\xa0\xbd\xed\xb8\x80 here.\n"
    return (TESTDATA / f"{name}.txt").read_bytes()


def build(tmp_path, name, content, on_bad_utf8="error"):
    """Returns unmasked ids, `(examples, LENGTH)`, and the metadata."""
    path = tmp_path / name
    path.write_bytes(content)
    output_dir = tmp_path / "out"
    build_tfrecords.main(
        RecordsConfig(
            input_file=(str(path),),
            output_dir=str(output_dir),
            spm_model_file=VOCABULARY,
            max_seq_length=LENGTH,
            max_predictions_per_seq=PREDICTIONS,
            dupe_factor=1,
            num_shards=1,
            num_workers=1,
            masking="dynamic",
            on_bad_utf8=on_bad_utf8,
        )
    )
    (shard,) = glob.glob(str(output_dir / "train" / "*.tfrecord"))
    records = list(tf.data.TFRecordDataset(shard).as_numpy_iterator())
    spec = {"input_ids": tf.io.FixedLenFeature([LENGTH], tf.int64)}
    ids = tf.io.parse_example(tf.constant(records), spec)["input_ids"].numpy()
    return ids, read_metadata(str(output_dir / "train"))


def check_examples(ids):
    """Checks the number of special tokens and the padding."""
    assert len(ids)
    assert ((ids == CLS).sum(axis=1) == 1).all()
    assert ((ids == SEP).sum(axis=1) == 2).all()
    assert not (ids == MASK).any()
    # All padding is at the end.
    assert (np.diff((ids == 0).astype(int), axis=1) >= 0).all()


@pytest.mark.parametrize("name", VALID_UTF8)
def test_valid_text_builds(tmp_path, name):
    content = (TESTDATA / f"{name}.txt").read_bytes()
    check_examples(build(tmp_path, "a.txt", content)[0])


@pytest.mark.parametrize("name", INVALID_UTF8)
def test_an_error_names_file_and_line_of_invalid_utf8(tmp_path, name):
    content = read_invalid(name)
    with pytest.raises(
        UserError, match=rf"{name}.txt must be.*{INVALID_UTF8[name]}"
    ):
        build(tmp_path, f"{name}.txt", content)
    assert not list(tmp_path.rglob("*.tfrecord"))


@pytest.mark.parametrize("name", INVALID_UTF8)
def test_invalid_utf8_is_replaced_or_skipped(tmp_path, name):
    content = read_invalid(name)
    (tmp_path / "replace").mkdir()
    replaced, metadata = build(tmp_path / "replace", "a", content, "replace")
    check_examples(replaced)
    assert not metadata.skipped
    (tmp_path / "skip").mkdir()
    skipped, metadata = build(tmp_path / "skip", "a", content, "skip")
    check_examples(skipped)
    assert metadata.skipped == {"lines that are not UTF-8": 1}
    assert (skipped > 0).sum() < (replaced > 0).sum()


TEXT = "The first line.\nThe second one.\n\nAnother document.\nAnd its end.\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("\n\n", "\n \t\n\x0c\n\n").encode(),
        # These separate lines for `str.splitlines`, but words here.
        TEXT.replace(" ", "\x85").encode(),
        TEXT.replace(" ", "\u2028").encode(),
        TEXT.replace(" ", "\x1c").encode(),
        TEXT.replace(" ", "\u3000\xa0").encode(),
    ],
    ids=["bom-crlf", "cr", "form-feed", "nel", "u2028", "fs", "wide"],
)
def test_all_separators_of_lines_and_words_give_the_same_records(
    tmp_path, content
):
    for name, text in (("plain", TEXT.encode()), ("other", content)):
        (tmp_path / name).mkdir()
        build(tmp_path / name, "a.txt", text)
    plain, other = (
        (tmp_path / name / "out/train/train-00000-of-00001.tfrecord")
        for name in ("plain", "other")
    )
    assert plain.read_bytes() == other.read_bytes()


def test_a_line_of_142_kb_fills_its_examples(tmp_path):
    text = (TESTDATA / "multilingual-de.txt").read_text(encoding="utf-8")
    line = (" ".join(text.split()) * 14)[:142_000]
    ids, metadata = build(tmp_path, "a.txt", line.encode())
    check_examples(ids)
    assert metadata.num_documents == 1
    assert (ids > 0).mean() > 0.9
    num_tokens = len(Tokenizer(VOCABULARY).encode_batch([line]).ids)
    assert metadata.num_pieces - 3 * len(ids) > 0.9 * num_tokens


def test_documents_of_one_sentence_give_pairs_of_segments(tmp_path):
    lines = (TESTDATA / "multilingual-vi.txt").read_text(encoding="utf-8")
    sentences = [line for line in lines.split("\n") if len(line.split()) > 9]
    content = "\n\n".join(sentences).encode()
    ids, metadata = build(tmp_path, "a.txt", content)
    check_examples(ids)
    assert metadata.num_documents == len(sentences) > 10


def test_unusual_characters_and_spellings_of_special_pieces_are_text(tmp_path):
    """Each text is a document; the tokens spell the letters of the pieces."""
    pieces = [*SPECIAL_PIECES, "<s>", "</s>", "<mask>"]
    texts = [
        "And \x01\x02\x07\x08 \x1b[31m controls \x7f \x9d.\nTwo.",
        "Joined \u200d \u200b \u2060 \ufeff \u202e letters.\nTwo lines.",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 a family.\nTwo \ud7ff.",
        "Private \ue000 and \U0010ffff and \ufffe no characters.\nTwo.",
        "Za\u0300\u0301\u0302\u0303\u0304\u0305lgo!\n\u0301\u0301\nTwo.",
        "ﬁ ½ ① Ⅷ ㎏ ﷽ İ ß ſ ς.\nTwo lines.",  # noqa: RUF001
        "“Quotes” — ‘and’ dashes…\nTwo lines.",  # noqa: RUF001
        *(f"A {p} b{p}c {p}{p}.\n{p} Two ▁{p}▁ lines." for p in pieces),
    ]
    ids, metadata = build(tmp_path, "a.txt", "\n\n".join(texts).encode())
    check_examples(ids)
    assert metadata.num_documents == len(texts)
    tokenizer = Tokenizer(VOCABULARY)
    spelled = "".join(tokenizer.id_to_piece(i) for i in ids.ravel() if i > 4)
    for piece in pieces:
        letters = "".join(c for c in piece.lower() if c.isalpha())
        assert letters in spelled.replace("▁", "")
