"""Answers of converted models, beside those in TensorFlow."""

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.serving.verification import compare


def test_embeddings_of_other_directions_are_refused():
    """Their length does not matter, nor do small differences."""
    embeddings = np.eye(2, 4, dtype=np.float32)
    mask = {"input_mask": np.ones([2, 3], np.int32)}

    def compare_with(found):
        return compare(
            "a model",
            [mask],
            [{"embedding": embeddings}],
            [{"embedding": found}],
            is_exact=False,
            remedy="Do not use it.",
        )

    assert compare_with(2 * embeddings + 0.1).equal_answers == 1
    with pytest.raises(UserError, match=r"a model must.*0\.0% equal answers"):
        compare_with(np.roll(embeddings, 1, axis=1))
