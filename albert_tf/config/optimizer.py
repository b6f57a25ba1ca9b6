"""Settings of the optimizer and the learning rate."""

import dataclasses

from albert_tf.config.settings import Config, setting


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """The optimizer; defaults are those of google-research/albert.

    Example:
        >>> config = OptimizerConfig(optimizer="adamw", learning_rate=0.0001)
        >>> config.optimizer, config.weight_decay_rate
        ('adamw', 0.01)
        >>> OptimizerConfig(optimizer="sgd")
        Traceback (most recent call last):
        albert_tf.errors.UserError: optimizer must be one of lamb, adamw.
        Received: 'sgd'.
    """

    optimizer: str = setting(
        "lamb",
        "LAMB, as in google-research/albert, or AdamW.",
        choices=("lamb", "adamw"),
        affects="result",
    )
    learning_rate: float = setting(
        0.00176,
        "Peak learning rate; the default suits a global batch size of 4096.",
        at_least=0,
        affects="result",
    )
    num_warmup_steps: int = setting(
        3125,
        "Number of steps of linear warm-up.",
        at_least=0,
        affects="result",
    )
    poly_power: float = setting(
        1.0,
        "Power of the polynomial decay of the learning rate, which reaches 0 "
        "at num_train_steps; 1 is linear decay.",
        at_least=0,
        affects="result",
    )
    num_decay_steps: int = setting(
        0,
        "Number of steps at the end in which the learning rate decays, e.g. "
        "1000; between warm-up and decay it stays at its peak (trapezoidal or "
        "warmup-stable-decay schedule; Zhai et al., 2022; Haegele et al., "
        "2024). At most num_train_steps - num_warmup_steps. 0: the decay "
        "counts from step 0, as in google-research/albert.",
        at_least=0,
        affects="result",
    )
    weight_decay_rate: float = setting(
        0.01,
        "Rate of weight decay; LayerNorm parameters and biases are not "
        "decayed.",
        at_least=0,
        affects="result",
    )
    beta_1: float = setting(
        0.9,
        "Decay rate of the mean of the gradients.",
        at_least=0,
        below=1,
        affects="result",
    )
    beta_2: float = setting(
        0.999,
        "Decay rate of the mean of the squared gradients.",
        at_least=0,
        below=1,
        affects="result",
    )
    epsilon: float = setting(
        1e-6,
        "Number added to the root of the mean of the squared gradients.",
        at_least=1e-20,
        affects="result",
    )
    clip_norm: float = setting(
        1.0,
        "Largest global norm of the gradients; gradients above it are scaled "
        "down. 0 does not clip.",
        at_least=0,
        affects="result",
    )
    clip_scope: str = setting(
        "global",
        "Which gradients to clip: global clips those of the global batch; "
        "per_replica clips those of each replica before they are averaged, as "
        "in google-research/albert.",
        choices=("global", "per_replica"),
        affects="result",
    )
