"""Fine-tuning gives the logits and losses of Hugging Face's models.

Both train 50 steps of AdamW from the same weights on the same batches.
"""

import functools

import numpy as np
import pytest

from albert_tf.config.task import KINDS

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers import paired_tasks  # noqa: E402
from tests.helpers.random_task import HEADS, make_task  # noqa: E402

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def one_thread():
    """The operations are too small for a second thread to help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Task, losses and initial weights by kind; each trains once."""

    @functools.cache
    def train(kind):
        task = make_task(HEADS[kind], tmp_path_factory.mktemp(kind))
        return task, *paired_tasks.train(task)

    return train


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_fifty_steps_are_those_of_hugging_face(trained, kind):
    task, losses, initial = trained(kind)

    theirs, outputs = paired_tasks.train_in_pytorch(task, initial)

    ours = paired_tasks.first_outputs(task, initial)
    assert outputs.keys() <= ours.keys()
    for name, values in outputs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(losses, theirs, rtol=1e-4)
    # The losses must change, or their agreement would prove little.
    assert theirs[-5:].mean() < 0.8 * theirs[:5].mean()


def test_a_different_update_would_show(trained):
    """With bias correction, PyTorch's default, AdamW gives other losses."""
    task, losses, initial = trained("classification")

    others, _ = paired_tasks.train_in_pytorch(
        task, initial, bias_correction=True
    )

    assert np.abs(others / losses - 1).max() > 1e-2
