"""The trainer gives the losses and weights of a reference in PyTorch.

Both train 50 steps from the same weights on the same records, with warm-up,
decay, clipping, weight decay and its exclusions; the masked-LM loss falls from
6.0 to 5.0 nats. Losses agree to 6e-7 (relative), weights to 4e-6 of their
change. The smallest departure from the published update makes a difference
fifty times as large.
"""

import numpy as np
import pytest

from tests.helpers import tiny_run

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers import paired_training

pytestmark = [pytest.mark.interop, pytest.mark.long]

TOLERANCE = 3e-5


# By name: settings of the run.
RUNS = {
    "one device": {},
    "replicas and micro-batches": {
        "strategy": "mirrored",
        "num_logical_cpus": 2,
        "gradient_accumulation_steps": 2,
    },
    "groups of layers": {
        "num_hidden_layers": 4,
        "num_hidden_groups": 2,
        "inner_group_num": 2,
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_fifty_steps_of_lamb_are_those_of_pytorch(name, tiny_records, tmp_path):
    """`finetuning/test_same_training` compares AdamW."""
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        num_train_steps=50,
        num_warmup_steps=5,
        learning_rate=0.03,
        # Weights so large that attention is uneven and GELU is far from linear,
        # as in a trained model. With 0.02, errors in them would not show.
        initializer_range=0.2,
        **RUNS[name],
    )
    ours = paired_training.train(config)

    theirs = paired_training.train_in_pytorch(config, ours.initial)

    difference = paired_training.loss_differences(ours, theirs).max()
    assert difference < TOLERANCE
    assert paired_training.weight_difference(ours, theirs) < TOLERANCE
    # The losses must change, or their agreement would prove little.
    masked_lm, sentence_order = theirs.losses.T
    assert masked_lm[-5:].mean() < 0.9 * masked_lm[:5].mean()
    assert np.ptp(sentence_order) > 0.1
