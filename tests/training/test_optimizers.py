import contextlib
import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import OptimizerConfig, PretrainingConfig
from albert_tf.training.optimizers import make_optimizer
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train_step import make_state
from tests.helpers import tiny_run

STEPS = 50
CONFIG = {
    "lamb": OptimizerConfig(optimizer="lamb"),
    "adamw": OptimizerConfig(optimizer="adamw", weight_decay_rate=0.3),
    "muon": OptimizerConfig(optimizer="muon", weight_decay_rate=0.3),
}
BLOCK = "albert/encoder/group_0_inner_group_0"
SHAPES = {
    "encoder/dense/kernel": (3, 5),
    "encoder/dense/bias": (5,),
    "encoder/LayerNorm/gamma": (7,),
    "heads/layer_normalization/beta": (7,),
    "embeddings/word_embeddings": (11, 2),
    # Starts at zero, so that LAMB has no norm to adapt to at first.
    "heads/sop/kernel": (2, 3),
    # Its gradient is zero throughout.
    "pooler/unused/kernel": (4, 3),
    # Muon updates these, in one product for both shapes of the second kind.
    f"{BLOCK}_attention/query/kernel": (5, 5),
    f"{BLOCK}_ffn/intermediate/kernel": (3, 7),
    f"{BLOCK}_ffn/output/kernel": (7, 3),
}


def initial_weights():
    random = np.random.default_rng(0)
    weights = {path: random.normal(size=s) for path, s in SHAPES.items()}
    weights["heads/sop/kernel"] *= 0
    return weights


def gradients_of_each_step():
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        step = {path: random.normal(size=s) for path, s in SHAPES.items()}
        step["pooler/unused/kernel"] *= 0
        yield step


def rates():
    return 0.02 * np.linspace(0, 1, STEPS)


def muon_factor(matrix):
    """What Muon makes of a matrix, by its singular values, in float64."""
    u, singular, v = np.linalg.svd(matrix, full_matrices=False)
    singular /= np.linalg.norm(singular) or 1
    is_large = singular > 0.002
    for _ in range(5):
        singular = (
            3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
        )
    # The band of Jordan et al.
    assert np.all((singular[is_large] > 0.68) & (singular[is_large] < 1.21))
    return u @ np.diag(singular) @ v


def train_numpy(config):
    """Weights and moments after all steps, in float64, by the formulas."""
    uses_muon = config.optimizer == "muon"
    uses_lamb = config.optimizer == "lamb"
    weights = initial_weights()
    m = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    v = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    for gradients, rate in zip(gradients_of_each_step(), rates(), strict=True):
        for path, g in gradients.items():
            if uses_muon and path.startswith(BLOCK):
                m[path] = 0.95 * m[path] + 0.05 * g
                change = muon_factor(0.95 * m[path] + 0.05 * g)
                change *= 0.2 * np.sqrt(max(g.shape))
                change += config.weight_decay_rate * weights[path]
                weights[path] = weights[path] - rate * change
                v.pop(path, None)
                continue
            m[path] = 0.9 * m[path] + 0.1 * g
            v[path] = 0.999 * v[path] + 0.001 * g**2
            change = m[path] / (np.sqrt(v[path]) + 1e-6)
            if not re.search("LayerNorm|layer_norm|bias", path):
                change = change + config.weight_decay_rate * weights[path]
                if uses_lamb:
                    long = np.sqrt(np.sum(weights[path] ** 2))
                    wide = np.sqrt(np.sum(change**2))
                    if long > 0 and wide > 0:
                        change = change * long / wide
            weights[path] = weights[path] - rate * change
    return weights, m, v


def make_variable(path, value):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(value.astype("float32"), name=name)
    assert variable.path == path
    return variable


class Variables:
    """Variables by path, at first at their initial weights; an optimizer."""

    def __init__(self, config):
        self.by_path = {}
        for path, value in initial_weights().items():
            self.by_path[path] = make_variable(path, value)
        self.optimizer = make_optimizer(config)
        self.optimizer.build(list(self.by_path.values()))

    def values(self):
        return {path: v.numpy() for path, v in self.by_path.items()}


def as_float32(gradients):
    return {p: tf.constant(g, tf.float32) for p, g in gradients.items()}


def train(config, *, fuse=False):
    """Trains the same steps with `make_optimizer`; returns the variables.

    The gradients are four times as large, and scaled by a quarter.
    """
    variables = Variables(config)

    @tf.function
    def step(gradients, rate):
        ordered = [gradients[path] for path in variables.by_path]
        variables.optimizer.apply(ordered, rate, 0.25, fuse=fuse)

    for gradients, rate in zip(gradients_of_each_step(), rates(), strict=True):
        step(
            as_float32({path: 4 * g for path, g in gradients.items()}),
            tf.constant(rate, tf.float32),
        )
    return variables


@pytest.mark.parametrize(
    ("name", "fuse"),
    [
        ("lamb", False),
        ("adamw", False),
        ("muon", False),
        ("lamb", True),
        ("muon", True),
    ],
)
def test_50_steps_match_the_formula(name, fuse):
    variables = train(CONFIG[name], fuse=fuse)
    weights, m, v = train_numpy(CONFIG[name])

    for path, value in variables.values().items():
        slots = variables.optimizer.slots
        np.testing.assert_allclose(value, weights[path], atol=5e-6)
        np.testing.assert_allclose(slots[f"{path}/m"], m[path], atol=1e-6)
        # Muon has no second moment.
        assert (f"{path}/v" in slots) == (path in v)
        if path in v:
            np.testing.assert_allclose(slots[f"{path}/v"], v[path], atol=1e-6)


# With betas and weight decay of 0, an update is the sign of the gradient, whose
# norm is 2 for 4 numbers.
SIGNS = {"beta_1": 0, "beta_2": 0, "weight_decay_rate": 0}
WEIGHTS = {
    "first/kernel": [3, 4, 0, 0],  # of norm 5
    "second/kernel": [0, 0, -10, 0],
    "zero/kernel": [0, 0, 0, 0],
    "long/bias": [100, 0, 0, 0],
}


def metrics_of_a_step(config):
    """Metrics of a step on WEIGHTS at rate 0.1, and the norm of each change."""
    starts = {path: np.array(start) for path, start in WEIGHTS.items()}
    variables = [make_variable(path, w) for path, w in starts.items()]
    optimizer = make_optimizer(config)
    optimizer.build(variables)
    gradient = tf.constant([2.0, -1.0, 3.0, -4.0])
    metrics = optimizer.apply([gradient] * 4, tf.constant(0.1))
    moved = [
        np.linalg.norm(variable.numpy() - start)
        for variable, start in zip(variables, starts.values(), strict=True)
    ]
    return {name: float(value) for name, value in metrics.items()}, moved


def test_metrics_of_a_lamb_step_match_a_calculation_by_hand():
    metrics, moved = metrics_of_a_step(OptimizerConfig(**SIGNS))

    # 0.1 |w|; 0.1 * 2 where w is zero, or is not adapted.
    assert moved == pytest.approx([0.5, 1, 0.2, 0.2], rel=1e-5)
    # |w| / 2 = 2.5 and 5; 1 where w is zero; the bias has none.
    assert metrics == pytest.approx(
        {
            "update_norm": (0.25 + 1 + 0.04 + 0.04) ** 0.5,
            "trust_ratio_min": 1,
            "trust_ratio_mean": (2.5 + 5 + 1) / 3,
            "trust_ratio_max": 5,
        },
        rel=1e-5,
    )


def test_adamw_has_no_trust_ratios():
    """Four updates of norm 0.2 have a joint norm of 0.4."""
    metrics, _ = metrics_of_a_step(OptimizerConfig(optimizer="adamw", **SIGNS))
    assert metrics == pytest.approx({"update_norm": 0.4}, rel=1e-5)


# Of one matrix each: query's is square, the other one has more rows.
DEGENERATE = {
    "zero": np.zeros((7, 3)),
    "rank 1": np.outer(np.arange(7.0), [1, 2, 0]),
    "tiny": np.full((7, 3), 1e-15),
    "scaled identity": 1e4 * np.eye(7, 3),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_muon_takes_any_gradient(name):
    gradient = DEGENERATE[name]
    variable = make_variable(f"{BLOCK}_ffn/output/kernel", np.zeros((7, 3)))
    optimizer = make_optimizer(OptimizerConfig(optimizer="muon"))
    optimizer.build([variable])

    metrics = optimizer.apply(
        [as_float32({"": gradient})[""]], tf.constant(1.0)
    )

    expected = -0.2 * np.sqrt(7) * muon_factor(gradient)
    np.testing.assert_allclose(variable, expected, atol=1e-5)
    norm = np.linalg.norm(expected)
    np.testing.assert_allclose(metrics["update_norm"], norm, rtol=1e-5)


def test_muon_updates_the_kernels_of_the_blocks():
    """Four of attention, shared, and two of each feed-forward layer."""
    model = dataclasses.replace(
        tiny_run.MODEL,
        num_hidden_layers=3,
        parameter_sharing="attention",
        max_position_embeddings=512,
    )
    config = PretrainingConfig(
        model=model, optimizer=OptimizerConfig(optimizer="muon")
    )
    state = make_state(config, Pretraining(config))

    slots = state.optimizer.slots.keys()
    variables = state.model.trainable_variables
    muons = [v for v in variables if f"{v.path}/v" not in slots]
    assert len(muons) == 4 + 3 * 2
    hidden, intermediate = model.hidden_size, model.intermediate_size
    assert {tuple(sorted(v.shape)) for v in muons} == {
        (hidden, hidden),
        (hidden, intermediate),
    }
