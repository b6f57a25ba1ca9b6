import collections

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records.features import CLS_ID, SENTENCE_LABEL, SEP_ID, UNK_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.config import RecordsConfig
from data_prep.metadata import judge_use, unigram_entropy
from data_prep.segments import HEADER, UnmaskedExamples, token_dtype
from data_prep.serialization import serialize_examples
from data_prep.shards import make_records
from tests.helpers.small_builds import VOCABULARY


def make_examples(*segments, labels=0, documents=None):
    """Examples of pairs of segments, by default each of another document."""
    headers = np.zeros(len(segments), HEADER)
    headers["key"] = np.arange(len(segments)) * 2**40
    headers["document"] = documents or np.arange(len(segments))
    headers["first_length"] = [len(first) for first, _ in segments]
    headers["second_length"] = [len(second) for _, second in segments]
    headers["label"] = labels
    headers["opens_document"] = np.arange(len(segments)) < 2
    tokens = [token for pair in segments for part in pair for token in part]
    return UnmaskedExamples(headers, np.array(tokens, token_dtype(30000)))


def make(parts, masking="dynamic", **settings):
    """Returns the features of the records by name, and the counts."""
    config = RecordsConfig(
        max_seq_length=12,
        max_predictions_per_seq=2,
        masking=masking,
        **settings,
    )
    counts = collections.Counter()
    found = [
        {
            name: list(f.int64_list.value or f.float_list.value)
            for name, f in tf.train.Example.FromString(
                record
            ).features.feature.items()
        }
        for record in make_records(
            iter(parts), Tokenizer(VOCABULARY), config, counts
        )
    ]
    return found, counts


def test_record_equals_one_written_by_hand():
    """20 is "▁to" and begins a word, 18 is "s" and does not."""
    (example,), counts = make(
        [make_examples(([20, 18, 21], [23, 18]), labels=1)]
    )
    assert example == {
        "input_ids": [CLS_ID, 20, 18, 21, SEP_ID, 23, 18, SEP_ID, 0, 0, 0, 0],
        "input_mask": [1] * 8 + [0] * 4,
        "segment_ids": [0] * 5 + [1] * 3 + [0] * 4,
        "token_boundary": [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0],
        SENTENCE_LABEL: [1],
    }
    assert counts == {"documents": 1, "examples": 1, "pieces": 8, "rows": 1}


def test_sizes_of_the_parts_have_no_influence():
    """600 examples at once, and in parts of several sizes."""
    tokens = np.random.default_rng(0).integers(5, 30000, (600, 7))
    unmasked = make_examples(
        *[(row[:4], row[4:]) for row in tokens], labels=[0, 1, 1] * 200
    )
    parts = np.split(np.arange(600), [0, 3, 400, 400, 599])
    for objective in ("sop", "nsp"):
        settings = {"sentence_objective": objective, "masking": "static"}
        once, counts = make([unmasked], **settings)
        again = make([unmasked.take(part) for part in parts], **settings)
        assert again == (once, counts)
        assert len(once) == 600


def test_random_next_sentence_is_one_of_another_document_and_cut_least():
    """Examples 1, 3 and 5 have label 1.

    - Example 1 has 2 tokens to replace. Example 2 has 2, but is of the same
      document; of the others, example 4 has the fewest that suffice.
    - Example 3 has 1 token, and so have examples 0 and 6. Example 6 is next.
    - Example 5 has 5 tokens, more than any other, so it gets the 4 tokens of
      example 7, the longest of the others.

    Without another document, the label is 0.
    """
    segments = (
        ([21], [31]),
        ([22], [41, 42]),
        ([23], [51, 52]),
        ([24], [61]),
        ([25], [71, 72, 73]),
        ([26], [81, 82, 83, 84, 85]),
        ([27], [91]),
        ([28], [101, 102, 103, 104]),
    )
    labels = [0, 1, 0, 1, 0, 1, 0, 0]
    unmasked = make_examples(
        *segments, labels=labels, documents=[1, 2, 2, 3, 4, 5, 6, 7]
    )
    examples, _ = make([unmasked], sentence_objective="nsp")
    expected = [second for _, second in segments]
    expected[1], expected[3] = [71, 72], [91]
    expected[5] = [101, 102, 103, 104]
    for example, second, label in zip(examples, expected, labels, strict=True):
        assert example["input_ids"][3 : 4 + len(second)] == [*second, SEP_ID]
        assert sum(example["segment_ids"]) == len(second) + 1
        assert example[SENTENCE_LABEL] == [label]

    alone = make_examples(*segments[:2], labels=[1, 1], documents=[7, 7])
    examples, _ = make([alone], sentence_objective="nsp")
    assert [e[SENTENCE_LABEL] for e in examples] == [[0], [0]]
    assert examples[0]["input_ids"][:5] == [CLS_ID, 21, SEP_ID, 31, SEP_ID]


def test_bytes_equal_those_of_tensorflow():
    """For numbers of one to nine bytes, extreme and random."""
    rng = np.random.default_rng(0)
    features = {
        "zeros": np.zeros((7, 5), np.int32),
        "borders": np.array([[0, 1, 127, 128, 16383, 16384, 2**18 - 1]] * 7),
        "large": np.array([[0, 2**18, 2**21 - 1, 2**21, 2**35, 2**63 - 1]] * 7),
        "growing": np.arange(2**18 - 3, 2**18 + 4)[:, np.newaxis],
        "mixed": rng.integers(0, 30000, (7, 300)).astype(np.int32),
        "weights": rng.normal(size=(7, 3)).astype(np.float32),
    }
    for row, serialized in enumerate(serialize_examples(features)):
        example = tf.train.Example()
        for name, values in features.items():
            feature = example.features.feature[name]
            if values.dtype == np.float32:
                feature.float_list.value.extend(values[row].tolist())
            else:
                feature.int64_list.value.extend(values[row].tolist())
        assert serialized == example.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("counts", "faults"),
    [
        ({}, ""),
        ({UNK_ID: 36000}, "1.0% of the tokens are <unk> (usual: up to 1%)"),
        ({UNK_ID: 30000}, ""),
        (dict.fromkeys(range(100, 4600), 0), "15.0% of the pieces are never"),
        (dict.fromkeys(range(100, 4599), 0), ""),
        # Less than 100 tokens for each piece.
        (dict.fromkeys(range(100, 9000), 0), ""),
    ],
)
def test_a_vocabulary_that_does_not_suit_a_text_is_described(counts, faults):
    """29,995 ordinary pieces occur 118 times each, with these exceptions."""
    piece_counts = np.full(30000, 118)
    piece_counts[:5] = 0
    piece_counts[list(counts)] = list(counts.values())
    assert faults in judge_use(piece_counts, Tokenizer(VOCABULARY))
    assert bool(faults) == bool(judge_use(piece_counts, Tokenizer(VOCABULARY)))


def test_unigram_entropy_ignores_special_pieces():
    """Three ordinary pieces of probability 1/2, 1/4 and 1/4 have 1.5 bits."""
    entropy = unigram_entropy(np.array([9, 9, 9, 9, 9, 4, 0, 2, 2]))
    np.testing.assert_allclose(entropy, 1.5 * np.log(2))
