"""LAMB and AdamW as google-research/albert trains with them.

`keras.optimizers` has both names, but corrects the bias of the moments,
decays outside LAMB's trust ratio, adapts LayerNorm and biases, and clips each
replica's gradients by themselves. These are plain classes over `tf.Variable`s
instead: the trainer reduces and clips the gradients, these apply them.
"""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from albert_tf.config import OptimizerConfig
from albert_tf.modeling.fusion import fused

# Variables neither decayed nor, by LAMB, adapted; found anywhere in the path.
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
def _moved(weights: tf.Tensor, rate: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
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
        """Makes the moments of `variables`, all zero.

        Called in the scope of the strategy that the variables were made in.

        Raises:
            ValueError: If two variables have the same path.
        """
        self._variables = list(variables)
        for variable in self._variables:
            for moment in ("m", "v"):
                name = f"{variable.path}/{moment}"
                if name in self.slots:
                    raise ValueError(f"Two variables are {variable.path}")
                # Without aggregation, as Keras makes weights, a replica
                # assigns its own copy and nothing is communicated.
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
    ) -> dict[str, tf.Tensor]:
        """Updates the variables; called on every replica.

        Every replica updates its own copies, by the same arithmetic on the
        same numbers, so that they stay equal.

        Args:
            gradients: float32, dense, one for each variable given to `build`,
                in that order. They must be equal on all replicas: reduced.
            learning_rate: float32 scalar, equal on all replicas.
            gradient_scale: float32 scalar, equal on all replicas, that all
                gradients are multiplied by: what clips them.

        Returns:
            float32 scalars: update_norm, of the change of
            all weights together; and of the trust ratios of those variables
            that have one, trust_ratio_min, trust_ratio_mean and
            trust_ratio_max.
        """
        norms, ratios = [], []
        for variable, gradient in zip(self._variables, gradients, strict=True):
            norm, ratio = self._apply_one(
                variable, gradient, learning_rate, gradient_scale
            )
            norms.append(norm)
            if ratio is not None:
                ratios.append(ratio)
        figures = {"update_norm": tf.norm(norms)}
        if ratios:
            figures["trust_ratio_min"] = tf.reduce_min(ratios)
            figures["trust_ratio_mean"] = tf.reduce_mean(ratios)
            figures["trust_ratio_max"] = tf.reduce_max(ratios)
        return figures

    def _apply_one(
        self,
        variable: keras.Variable,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        gradient_scale: tf.Tensor | float,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Gives the norm of the change, and the trust ratio."""
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
        )
        update_norm, ratio = tf.linalg.global_norm([update]), None
        if adapts:
            ratio = self._trust_ratio(weights, update_norm)
        rate = learning_rate if ratio is None else learning_rate * ratio
        m_slot.assign(m)
        v_slot.assign(v)
        variable.value.assign(_moved(weights, rate, update))
        return rate * update_norm, ratio

    def _trust_ratio(
        self, weights: tf.Tensor, update_norm: tf.Tensor
    ) -> tf.Tensor | None:
        """What an update is multiplied by, beside the learning rate."""
        del weights, update_norm
        return None


class Lamb(AdamW):
    """AdamW with updates as long as the weights that they change.

    The update of AdamW, decay included, is multiplied by |w| / |update|, or
    by 1 where either norm is 0. LayerNorm and biases are not adapted. A
    matrix that layers share is one variable and so has one ratio.

    Reference:
        [You et al., 2020](https://arxiv.org/abs/1904.00962), with the
        exclusions, and without the bias correction, of google-research/albert.
    """

    def _trust_ratio(
        self, weights: tf.Tensor, update_norm: tf.Tensor
    ) -> tf.Tensor:
        norm = tf.linalg.global_norm([weights])
        # A ratio of 0 would leave weights that start at zero there for ever.
        ratio = tf.math.divide_no_nan(norm, update_norm)
        return tf.where(ratio > 0, ratio, 1.0)


def make_optimizer(config: OptimizerConfig) -> AdamW:
    """The optimizer that `config.optimizer` names, not yet built."""
    return {"lamb": Lamb, "adamw": AdamW}[config.optimizer](config)
