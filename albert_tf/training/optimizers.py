"""LAMB and AdamW as google-research/albert implements them, and Muon.

The classes of the same names in `keras.optimizers` differ: they correct the
bias of the moments, apply weight decay outside LAMB's trust ratio, adapt
LayerNorm and biases, and clip the gradients of each replica separately. The
Muon of Keras stores two moments of each matrix. Here, the trainer reduces and
clips the gradients, and the optimizer applies them.
"""

import math
import re
from collections.abc import Sequence

import keras
import tensorflow as tf
from absl import logging

from albert_tf.config import OptimizerConfig
from albert_tf.modeling.kernels import fused

# Variables whose path contains one of these are neither decayed nor adapted.
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")

# Decay rate of the mean of the gradients that Muon uses.
MUON_MOMENTUM = 0.95
# At this rate, a small model ends 0.4 nats above its best (docs/log.md).
LARGE_MUON_RATE = 0.003

# The matrices that Muon updates: those of attention and feed-forward layers.
BLOCK_KERNELS = re.compile(r"encoder/.*_(attention|ffn)/\w+/kernel$")


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


def _make_slot(name: str, shape: Sequence[int]) -> tf.Variable:
    # Without aggregation, each replica assigns its own copy and nothing is
    # communicated. Keras creates weights the same way.
    return tf.Variable(
        tf.zeros(shape),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.NONE,
    )


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
        """Creates the moments of `variables`, in the same strategy scope."""
        self._variables = list(variables)
        for variable in self._variables:
            for moment in ("m", "v"):
                name = f"{variable.path}/{moment}"
                self.slots[name] = _make_slot(name, variable.shape)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        gradient_scale: tf.Tensor | float = 1.0,
        fuse: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Updates the variables; call it on every replica.

        Each replica updates its own copies, which stay equal, since all
        arguments are.

        Args:
            gradients: float32, dense, one for each variable given to `build`,
                in that order, summed over all replicas.
            gradient_scale: float32 scalar, which clips the gradients.
            fuse: Whether XLA compiles the arithmetic; see `ProgramTarget`.

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


class Muon:
    """Muon for the kernels of the blocks, AdamW or LAMB for all other weights.

    Muon updates the kernels of attention and feed-forward layer, which all
    layers of a group share. With gradient g, weights w of a matrix of r rows
    and c columns, and learning rate l:

        m = 0.95 m + 0.05 g
        n = 0.95 m + 0.05 g
        w = w - l (0.2 sqrt(max(r, c)) orthogonalize(n) + weight_decay_rate w)

    The root gives the entries of the update the size that those of AdamW have,
    so that both need learning rates of the same size.

    Attributes:
        slots: `"<variable path>/m"` of Muon's matrices, and the slots of the
            optimizer of all other variables.

    Reference:
        [Jordan et al., 2024](https://kellerjordan.github.io/posts/muon/);
        scale and decay: [Liu et al., 2025](https://arxiv.org/abs/2502.16982).
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self._rest = AdamW(config)
        # By their positions in the list of all variables.
        self._matrices: dict[int, keras.Variable] = {}
        self.slots: dict[str, tf.Variable] = {}

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moments; see `AdamW.build`."""
        self._matrices = {
            i: variable
            for i, variable in enumerate(variables)
            if BLOCK_KERNELS.search(variable.path)
        }
        self._rest.build(
            [v for i, v in enumerate(variables) if i not in self._matrices]
        )
        for variable in self._matrices.values():
            name = f"{variable.path}/m"
            self.slots[name] = _make_slot(name, variable.shape)
        self.slots |= self._rest.slots
        logging.info(
            "Muon updates %d kernels of the blocks (%d parameters), AdamW the "
            "other weights",
            len(self._matrices),
            sum(math.prod(v.shape) for v in self._matrices.values()),
        )
        if self._config.learning_rate > LARGE_MUON_RATE:
            logging.warning(
                "learning_rate=%g IS LARGE FOR MUON: rates of AdamW's size, "
                "such as 0.001, suit it",
                self._config.learning_rate,
            )

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        gradient_scale: tf.Tensor | float = 1.0,
        fuse: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Updates the variables; see `AdamW.apply`."""
        metrics = self._rest.apply(
            [g for i, g in enumerate(gradients) if i not in self._matrices],
            learning_rate,
            gradient_scale,
            fuse=fuse,
        )
        # Matrices of one shape, or of its transpose, share their products.
        batches: dict[tuple[int, int], list[tuple[int, tf.Tensor]]] = {}
        for i, variable in self._matrices.items():
            gradient = gradients[i] * gradient_scale
            slot = self.slots[f"{variable.path}/m"]
            m = MUON_MOMENTUM * slot + (1 - MUON_MOMENTUM) * gradient
            slot.assign(m)
            update = MUON_MOMENTUM * m + (1 - MUON_MOMENTUM) * gradient
            rows, columns = variable.shape
            if rows > columns:
                update = tf.transpose(update)
            shape = min(rows, columns), max(rows, columns)
            batches.setdefault(shape, []).append((i, update))
        norms = [metrics["update_norm"]]
        for (_, columns), batch in batches.items():
            places, updates = zip(*batch, strict=True)
            factors = orthogonalize(tf.stack(updates))
            for i, factor in zip(places, tf.unstack(factors), strict=True):
                variable = self._matrices[i]
                update = 0.2 * math.sqrt(columns) * factor
                if variable.shape[0] > variable.shape[1]:
                    update = tf.transpose(update)
                weights = tf.convert_to_tensor(variable.value)
                update += self._config.weight_decay_rate * weights
                variable.value.assign(
                    _updated(weights, learning_rate, update, fuse=fuse)
                )
                norms.append(learning_rate * tf.linalg.global_norm([update]))
        return {**metrics, "update_norm": tf.norm(norms)}


def orthogonalize(matrices: tf.Tensor) -> tf.Tensor:
    """Replaces the singular values of matrices by values near 1.

    Five Newton-Schulz iterations with the coefficients of Jordan et al. map
    singular values above 0.002 of the norm to values between 0.68 and 1.14.
    Smaller ones become at most that, and 0 stays 0.

    Args:
        matrices: float32, `(..., rows, columns)`, with rows <= columns, so
            that the products are small.

    Returns:
        float32, of the same shape.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    norms = tf.norm(matrices, axis=(-2, -1), keepdims=True)
    x = tf.math.divide_no_nan(matrices, norms)
    for _ in range(5):
        squares = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * squares + c * squares @ squares, x)
    return x


def make_optimizer(config: OptimizerConfig) -> AdamW | Muon:
    """Creates the optimizer of `config.optimizer`; it is not built yet."""
    classes: dict[str, type[AdamW] | type[Muon]] = {
        "lamb": Lamb,
        "adamw": AdamW,
        "muon": Muon,
    }
    return classes[config.optimizer](config)
