import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records.encoding import encode
from albert_tf.records.features import CLS_ID, MASK_ID, PAD_ID, SEP_ID
from albert_tf.serving.text_tokenizer import TextTokenizer, pack

TEXTS = ["The cat sat on the mat.", "It [MASK] [MASK].", "", "Rome"]
PAIRS = ["", "In Paris, 1,000 people wait for the boat.", "a", "is a city"]


@pytest.mark.parametrize("max_seq_length", [4, 7, 8, 11, 90])
@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_inputs_equal_those_of_a_served_model(
    vocabulary_file, tokenizer, pairs, max_seq_length
):
    in_graph = TextTokenizer(vocabulary_file)
    columns = [TEXTS] if pairs is None else [TEXTS, pairs]
    ids = [in_graph.encode_with_masks(tf.constant(c)) for c in columns]
    inputs = encode(tokenizer, TEXTS, pairs, max_seq_length)
    for found, wanted in zip(inputs, pack(max_seq_length, *ids), strict=True):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, wanted)
    lengths = inputs.input_mask.sum(axis=1)
    assert lengths.max() == inputs.input_ids.shape[1] <= max_seq_length


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


def test_an_empty_list_of_texts_gives_an_empty_batch(tokenizer):
    assert [array.shape for array in encode(tokenizer, [])] == [(0, 0)] * 3


def test_texts_and_pairs_of_different_length_are_refused(tokenizer):
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
