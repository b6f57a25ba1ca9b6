"""Builds from unusual text."""

import glob
import pathlib

import numpy as np
import tensorflow as tf

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


def build(tmp_path, name, content):
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


def test_valid_text_builds(tmp_path):
    contents = [(TESTDATA / f"{name}.txt").read_bytes() for name in VALID_UTF8]
    check_examples(build(tmp_path, "a.txt", b"\n\n".join(contents))[0])


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
