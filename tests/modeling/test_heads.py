import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling import heads
from albert_tf.modeling.layers import Embeddings

CONFIG = ModelConfig(
    vocab_size=11,
    embedding_size=2,
    hidden_size=4,
    num_attention_heads=2,
    intermediate_size=5,
    max_position_embeddings=7,
    hidden_act="relu",
)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_masked_lm_logits_are_products_with_the_word_embeddings(dtype):
    """By hand: relu([3, 1]) normalised is [1, -1]; float32 logits."""
    embeddings = Embeddings(CONFIG)
    embeddings.build()
    table = np.arange(22, dtype=np.float32).reshape(11, 2) ** 2
    embeddings.word_embeddings.assign(table)
    head = heads.MaskedLanguageModelHead(CONFIG)
    head.build()
    head.transform.kernel.assign([[1, 0], [0, 1], [0, 0], [0, 0]])
    head.output_bias.assign(np.arange(11) / 8)

    product, bias = head(
        tf.constant([[[3, 1, 9, -9]] * 3] * 2, dtype),
        embeddings.word_embeddings,
    )
    logits = product + bias

    assert logits.dtype == tf.float32
    assert logits.shape == (2, 3, 11)
    expected = table[:, 0] - table[:, 1] + np.arange(11) / 8
    np.testing.assert_allclose(logits[1, 2], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_sentence_logits_are_an_affine_map_of_the_pooled_output(dtype):
    head = heads.SentenceHead(CONFIG)
    head.build()
    head.output_weights.assign([[1, 2, 3, 4], [0, 1, 0, -1.001]])
    head.output_bias.assign([0.5, -0.25])

    logits = head(tf.constant([[1, 1, 1, 1], [0, 0, 0, 2]], dtype))

    assert logits.dtype == tf.float32
    np.testing.assert_allclose(
        logits, [[10.5, -0.251], [8.5, -2.252]], rtol=1e-5
    )
