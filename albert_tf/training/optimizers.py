"""LAMB and AdamW as google-research/albert implements them.

The classes of the same names in `keras.optimizers` differ: they correct the
bias of the moments, apply weight decay outside LAMB's trust ratio, adapt
LayerNorm and biases, and clip the gradients of each replica separately. The
classes here are plain Python over `tf.Variable`s: the trainer reduces and clips
the gradients, the optimizer applies them.
"""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from albert_tf.config import OptimizerConfig
from albert_tf.modeling.fusion import fused

# Variables whose path contains one of these are neither decayed nor adapted.
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")


@fused
def _moments_and_update(
    gradient: tf.Tensor,
    gradient_scale: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    weights: tf.Tensor,
    betas: tuple[float, float],
    epsilon: float,
    decay_rate: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    gradient *= gradient_scale
    m = betas[0] * m + (1 - betas[0]) * gradient
    v = betas[1] * v + (1 - betas[1]) * tf.square(gradient)
    update = m / (tf.sqrt(v) + epsilon)
    if decay_rate:
        update += decay_rate * weights
    return m, v, update


@fused
def _updated(
    weights: tf.Tensor, rate: tf.Tensor, update: tf.Tensor
) -> tf.Tensor:
    return weights - rate * update


class AdamW:
    """Adam without bias correction, with decoupled weight decay.

    With gradient g, weights w and learning rate r:

        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = w - r (m / (sqrt(v) + epsilon) + weight_decay_rate w)

    LayerNorm and biases are not decayed.

    Attributes:
        slots: The moments, by `"<variable path>/m"` and
            `"<variable path>/v"`, each float32 of its variable's shape.

    Reference:
        [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101); bias
        correction is left out as in google-research/albert.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self._variables: list[keras.Variable] = []
        self.slots: dict[str, tf.Variable] = {}

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moments of `variables`, all zero.

        Call it in the strategy scope in which the variables were created.

        Raises:
            ValueError: If two variables have the same path.
        """
        self._variables = list(variables)
        for variable in self._variables:
            for moment in ("m", "v"):
                name = f"{variable.path}/{moment}"
                if name in self.slots:
                    raise ValueError(f"Two variables are {variable.path}")
                # Without aggregation, each replica assigns its own copy and
                # nothing is communicated. Keras creates weights the same way.
                self.slots[name] = tf.Variable(
                    tf.zeros(variable.shape),
                    trainable=False,
                    name=name,
                    aggregation=tf.VariableAggregation.NONE,
                )

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        gradient_scale: tf.Tensor | float = 1.0,
        fuse: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Updates the variables; call it on every replica.

        Each replica updates its own copies. The arithmetic and its inputs are
        equal on all replicas, so the copies stay equal.

        Args:
            gradients: float32, dense, one for each variable given to `build`,
                in that order. They must be reduced, so equal on all replicas.
            learning_rate: float32 scalar, equal on all replicas.
            gradient_scale: float32 scalar, equal on all replicas, by which
                all gradients are multiplied; this clips them.
            fuse: Whether XLA compiles the arithmetic, as
                `ProgramTarget.fuse` says.

        Returns:
            float32 scalars: `update_norm`, the norm of the change of all
            weights, and over the variables that have a trust ratio,
            `trust_ratio_min`, `trust_ratio_mean` and `trust_ratio_max`.
        """
        norms, ratios = [], []
        for variable, gradient in zip(self._variables, gradients, strict=True):
            norm, ratio = self._apply_one(
                variable, gradient, learning_rate, gradient_scale, fuse
            )
            norms.append(norm)
            if ratio is not None:
                ratios.append(ratio)
        metrics = {"update_norm": tf.norm(norms)}
        if ratios:
            metrics["trust_ratio_min"] = tf.reduce_min(ratios)
            metrics["trust_ratio_mean"] = tf.reduce_mean(ratios)
            metrics["trust_ratio_max"] = tf.reduce_max(ratios)
        return metrics

    def _apply_one(
        self,
        variable: keras.Variable,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        gradient_scale: tf.Tensor | float,
        fuse: bool,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the norm of the change and the trust ratio, if any."""
        config, adapts = self._config, not EXCLUDED.search(variable.path)
        weights = tf.convert_to_tensor(variable.value)
        m_slot = self.slots[f"{variable.path}/m"]
        v_slot = self.slots[f"{variable.path}/v"]
        m, v, update = _moments_and_update(
            gradient,
            tf.convert_to_tensor(gradient_scale),
            tf.convert_to_tensor(m_slot),
            tf.convert_to_tensor(v_slot),
            weights,
            (config.beta_1, config.beta_2),
            config.epsilon,
            config.weight_decay_rate if adapts else 0.0,
            fuse=fuse,
        )
        update_norm, ratio = tf.linalg.global_norm([update]), None
        if adapts:
            ratio = self._trust_ratio(weights, update_norm)
        rate = learning_rate if ratio is None else learning_rate * ratio
        m_slot.assign(m)
        v_slot.assign(v)
        variable.value.assign(_updated(weights, rate, update, fuse=fuse))
        return rate * update_norm, ratio

    def _trust_ratio(
        self, weights: tf.Tensor, update_norm: tf.Tensor
    ) -> tf.Tensor | None:
        """Factor of the update in addition to the learning rate; None is 1."""
        del weights, update_norm
        return None


class Lamb(AdamW):
    """AdamW whose updates are scaled to the norm of the weights.

    The update of AdamW, decay included, is multiplied by the trust ratio
    |w| / |update|, or by 1 if either norm is 0. LayerNorm and biases are not
    adapted. A matrix shared by several layers is one variable and has one
    ratio.

    Example:
        >>> weights = keras.Variable([3.0, 4.0], name="kernel")
        >>> optimizer = Lamb(OptimizerConfig(weight_decay_rate=0.0))
        >>> optimizer.build([weights])
        >>> gradient = tf.constant([1.0, 1.0])
        >>> metrics = optimizer.apply([gradient], tf.constant(0.1))
        >>> round(float(metrics["update_norm"]), 4)  # 0.1 |w|
        0.5

    Reference:
        [You et al., 2020](https://arxiv.org/abs/1904.00962), with the
        exclusions, and without the bias correction, of google-research/albert.
    """

    def _trust_ratio(
        self, weights: tf.Tensor, update_norm: tf.Tensor
    ) -> tf.Tensor:
        norm = tf.linalg.global_norm([weights])
        # With a ratio of 0, weights that start at zero would stay zero.
        ratio = tf.math.divide_no_nan(norm, update_norm)
        return tf.where(ratio > 0, ratio, 1.0)


def make_optimizer(config: OptimizerConfig) -> AdamW:
    """Creates the optimizer of `config.optimizer`; it is not built yet."""
    return {"lamb": Lamb, "adamw": AdamW}[config.optimizer](config)
