"""The label of each token is its word."""

import itertools
import json

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.records.tokenization import Tokenizer
from data_prep import text as reader
from data_prep.config import RecordsConfig
from data_prep.inspection import read_rows, read_shape, restore_tokens
from tests.data_prep.conftest import read_text
from tests.helpers import labelled_text

WORDS = {unit: word for word, unit in labelled_text.UNITS.items()}


@pytest.mark.parametrize("packing", ["none", "best_fit"])
@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_each_symbol_has_the_label_of_its_word(packing, masking, tmp_path):
    labelled_text.write_text(tmp_path)
    directory = labelled_text.build(
        tmp_path, packing=packing, masking=masking, max_examples_per_row=4
    )
    labels = (directory / "train/token_labels.txt").read_text().split()
    assert labels == ["the", "quick", "brown", "fox"]
    tokenizer = Tokenizer(str(tmp_path / "spm.model"))
    space = tokenizer.space_id
    seen = set()
    for split in ("train", "eval"):
        shard = str(next((directory / split).glob("*.tfrecord")))
        for rows in read_rows(shard, read_shape(shard), faults := []):
            tokens, _ = restore_tokens(rows)
            for ids, found in zip(tokens, rows["token_labels"], strict=True):
                pieces = [tokenizer.id_to_piece(int(i)) for i in ids]
                # A word that a row cuts may begin or end it.
                ends = np.flatnonzero((ids < 5) | (ids == space))
                assert not found[ends].any()
                for begin, end in itertools.pairwise(ends):
                    word = WORDS.get("".join(pieces[begin + 1 : end]))
                    if word:
                        label = labels.index(word) + 1 if word in labels else 0
                        assert set(found[begin + 1 : end]) == {label}
                        seen.add(label)
        assert not faults
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"units": ["a", "b"], "words": ["x"]}, "2 units and 1 words"),
        ({"units": ["a", ""], "words": ["x", "y"]}, "the unit ''"),
        ({"units": ["a b"], "words": ["x"]}, "the unit 'a b'"),
        ({"units": ["a\u2581b"], "words": ["x"]}, "the unit 'a\u2581b'"),
        ({"units": "ab", "words": ["x"]}, "lists of strings"),
        ({"text": "ab"}, "lists of strings"),
    ],
)
def test_rows_without_a_word_for_each_unit_are_refused(row, message, tmp_path):
    text = labelled_text.write_text(tmp_path)
    labelled_text.build(tmp_path)
    with text.open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=message) as error:
        labelled_text.build(tmp_path)
    assert "line 61" in str(error.value)


def test_a_line_longer_than_a_document_is_one_document(tmp_path):
    path = tmp_path / "text.jsonl"
    units, words = ["a" * 300] * 4096, ["x"] * 4096
    path.write_text(json.dumps({"units": units, "words": words}) + "\n")
    config = RecordsConfig(input_file=(str(path),), label_vocab_size=2)
    _, documents, _ = read_text(config)
    ((line,),) = (map(reader.split_labels, document) for document in documents)
    assert line == (" ".join(units), words)


def test_labels_need_json_and_a_vocabulary_with_a_space(tmp_path):
    labelled_text.write_text(tmp_path)
    with pytest.raises(UserError, match="symbols with a space"):
        labelled_text.build(
            tmp_path, spm_model_file="tests/testdata/30k-clean.model"
        )
    (tmp_path / "text.txt").write_text("ðə\n")
    with pytest.raises(UserError, match="must be JSON with two"):
        labelled_text.build(tmp_path, input_file=(str(tmp_path / "text.txt"),))
