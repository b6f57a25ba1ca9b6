import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import TaskHeadConfig
from albert_tf.modeling import heads
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.models import AlbertForTask
from tests.helpers import tiny_model

H = tiny_model.SPREAD.hidden_size
IN_TRAINING = Dropout(seed=tf.constant([3, 4]))


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_class_logits_are_an_affine_map_with_dropout_in_training_only():
    head = heads.ClassificationHead(tiny_model.SPREAD, 3, dropout_rate=0.5)
    head.build()
    head.bias.assign([1, 2, 3])
    pooled = random(5, H)

    logits = head(pooled)
    dropped = head(pooled, dropout=IN_TRAINING)

    assert logits.dtype == tf.float32
    expected = pooled @ head.kernel.numpy() + [1, 2, 3]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(dropped - logits).max() > 0.1


@pytest.fixture
def beam():
    """The beam head, hidden states, candidate tokens and true starts."""
    head = heads.BeamSpanHead(tiny_model.SPREAD, dropout_rate=0.5)
    head.build()
    for number, variable in enumerate(head.variables):
        rng = np.random.default_rng(number)
        variable.assign(rng.normal(size=variable.shape))
    hidden = random(3, 9, H)
    candidates = np.ones((3, 9), bool)
    candidates[:, [1, 2, 8]] = False
    starts = np.array([0, 4, 7])
    return head, hidden, candidates, starts


def end_logits_of(head, hidden, candidates, starts):
    """End logits by google-research's formula, with one start per example."""
    at_start = hidden[np.arange(3), starts]
    both = np.concatenate(
        [hidden, np.repeat(at_start[:, None], 9, axis=1)], axis=-1
    )
    x = np.tanh(
        both @ head.end_transform.kernel.numpy()
        + head.end_transform.bias.numpy()
    )
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    norm = head.end_layer_norm
    x = x * norm.gamma.numpy() + norm.beta.numpy()
    logits = (x @ head.end.kernel.numpy() + head.end.bias.numpy())[..., 0]
    return np.where(candidates, logits, -1e30)


def test_the_end_depends_on_the_true_start_in_training(beam):
    head, hidden, candidates, starts = beam

    outputs = head(hidden, np.int32(~candidates), tf.constant(starts))
    moved = head(hidden, np.int32(~candidates), tf.constant([3, 3, 3]))

    expected = end_logits_of(head, hidden, candidates, starts)
    np.testing.assert_allclose(outputs["end_logits"], expected, rtol=1e-4)
    assert np.abs(moved["end_logits"] - expected)[candidates].max() > 1e-2


def test_the_beam_holds_the_best_ends_of_the_best_starts(beam):
    head, hidden, candidates, _ = beam

    outputs = head(hidden, np.int32(~candidates))

    assert "end_logits" not in outputs
    logits = hidden @ head.start.kernel.numpy()[:, 0] + head.start.bias.numpy()
    log_probs = log_softmax(np.where(candidates, logits, -1e30))

    def assert_best(positions, scores, log_probs):
        best = np.argsort(-log_probs)[:, :5]
        np.testing.assert_array_equal(positions, best)
        best_scores = np.take_along_axis(log_probs, best, 1)
        np.testing.assert_allclose(scores, best_scores, rtol=1e-3, atol=1e-4)

    starts = outputs["start_positions"].numpy()
    assert_best(starts, outputs["start_log_probs"], log_probs)
    for rank in range(5):
        ends = end_logits_of(head, hidden, candidates, starts[:, rank])
        assert_best(
            outputs["end_positions"][:, rank],
            outputs["end_log_probs"][:, rank],
            log_softmax(ends),
        )


def test_null_logits_read_the_expected_start_and_cls(beam):
    head, hidden, candidates, _ = beam

    outputs = head(hidden, np.int32(~candidates))
    dropped = head(hidden, np.int32(~candidates), dropout=IN_TRAINING)

    probabilities = tf.nn.softmax(outputs["start_logits"]).numpy()
    assert probabilities[~candidates].max() == 0
    expected_start = (probabilities[..., None] * hidden).sum(1)
    both = np.concatenate([expected_start, hidden[:, 0]], axis=-1)
    x = np.tanh(
        both @ head.null_transform.kernel.numpy()
        + head.null_transform.bias.numpy()
    )
    expected = (x @ head.null_weights.numpy())[:, 0]
    np.testing.assert_allclose(outputs["null_logits"], expected, rtol=1e-4)
    assert np.abs(dropped["null_logits"] - expected).max() > 0.1


def make_model(*arguments, **options):
    model = AlbertForTask(
        tiny_model.SPREAD, TaskHeadConfig(*arguments, **options)
    )
    model.build()
    return model


def make_batch():
    batch = tiny_model.make_batch()
    return {n: batch[n] for n in ("input_ids", "input_mask", "segment_ids")}


def test_one_vector_scores_each_choice_alone():
    model = make_model("multiple_choice", num_choices=5)
    rows = make_batch()
    examples = {n: tf.reshape(v, [1, 55]) for n, v in rows.items()}

    logits = model(examples)["logits"]

    assert model.head.kernel.shape == (H, 1)
    # Computed at all positions, not only at [CLS].
    pooled = model.backbone(**rows).pooled_output
    alone = pooled.numpy() @ model.head.kernel.numpy()
    np.testing.assert_allclose(logits, alone.reshape(1, 5), atol=1e-5)
    assert np.ptp(logits) > 1e-2


def test_question_answering_scores_every_token_without_a_pooler():
    model = make_model("question_answering")
    model.head.bias.assign([0.5, -0.25])
    batch = make_batch()

    outputs = model(batch)

    sequence = model.backbone(**batch).sequence_output
    expected = sequence.numpy() @ model.head.kernel.numpy()
    np.testing.assert_allclose(
        outputs["end_logits"], expected[..., 1] - 0.25, atol=1e-5
    )
    rounded = model.head(tf.zeros([1, 2, H], tf.bfloat16))
    assert {logits.dtype for logits in rounded} == {tf.float32}


def test_the_beam_leaves_out_the_masked_tokens():
    model = make_model("question_answering", squad_head="beam")
    p_mask = tf.constant([[0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]] * 5)
    batch = {**make_batch(), "p_mask": p_mask}

    outputs = model({**batch, "start_position": tf.constant([[5]] * 5)})

    np.testing.assert_array_equal(
        outputs["start_logits"].numpy() < -1e29, p_mask
    )
    assert outputs["end_logits"].shape == (5, 11)
    assert "end_logits" not in model(batch)
