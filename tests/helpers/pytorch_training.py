"""ALBERT's pretraining in PyTorch, a reference for the trainer.

Model and loss are Hugging Face's. Clipping, schedule, LAMB and AdamW follow the
papers and google-research/albert, as tensor operations. The table of weight
names is all that is shared with the trainer: it lets both begin with the same
weights.

Reference:
    LAMB: [You et al., 2020](https://arxiv.org/abs/1904.00962), Algorithm 2.
    AdamW: [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101),
    Algorithm 2. google-research/albert changes both: it does not correct the
    bias of the moments, neither decays nor adapts LayerNorm and biases, and
    decays the learning rate linearly from step 0.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from albert_tf.config import FinetuningConfig, ModelConfig, PretrainingConfig
from albert_tf.interop.weight_names import Weight, list_weights

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of the optimizer and its schedule.

    The defaults are those of google-research/albert.

    Attributes:
        optimizer: "lamb" or "adamw".
        learning_rate: The peak.
        clip_norm: Maximum global norm of the gradients.
    """

    optimizer: str
    learning_rate: float
    num_warmup_steps: int
    num_train_steps: int
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.01
    clip_norm: float = 1.0

    def learning_rate_at(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        warmup, end = self.num_warmup_steps, self.num_train_steps
        if step < warmup:
            return self.learning_rate * step / warmup
        return self.learning_rate * (1 - step / end)


def recipe_of(config: PretrainingConfig | FinetuningConfig) -> Recipe:
    """The settings of a run."""
    return Recipe(
        config.optimizer.optimizer,
        config.optimizer.learning_rate,
        config.optimizer.num_warmup_steps,
        config.training.num_train_steps,
    )


def train(
    config: ModelConfig,
    values: Mapping[str, np.ndarray],
    batches: Iterable[Mapping[str, np.ndarray]],
    recipe: Recipe,
) -> tuple[np.ndarray, Values]:
    """Trains on each batch once, in float32, without dropout.

    Args:
        config: The architecture, with `parameter_sharing="all"`.
        values: Initial weights by path.
        batches: Global batches from the input pipeline.

    Returns:
        The masked-LM and sentence-order loss of each step, before its update,
        `(steps, 2)`; and the final weights by path.
    """
    model = transformers.AlbertForPreTraining(make_config(config)).train()
    assign(model, list_weights(config), values)
    parameters = dict(model.named_parameters())
    moments = zero_moments(parameters)
    losses = []
    for step, batch in enumerate(batches):
        model.zero_grad()
        loss, sentence = _loss(model, batch)
        loss.backward()
        losses.append([(loss - sentence).item(), sentence.item()])
        with torch.no_grad():
            update(parameters, moments, recipe, step)
    trained = {
        weight.path: parameters[weight.hugging_face].detach().numpy()
        for weight in list_weights(config)
    }
    for weight in list_weights(config):
        if weight.transposed:
            trained[weight.path] = trained[weight.path].T
    return np.array(losses), trained


def make_config(
    config: ModelConfig, **settings: Any
) -> transformers.AlbertConfig:
    """The architecture for transformers, without dropout."""
    return transformers.AlbertConfig(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_hidden_groups=config.num_hidden_groups,
        inner_group_num=config.inner_group_num,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        # Not the fused kernels: in some processes, their outputs differ by
        # more than rounding errors.
        attn_implementation="eager",
        **settings,
    )


def assign(
    model: torch.nn.Module,
    weights: Sequence[Weight],
    values: Mapping[str, np.ndarray],
) -> None:
    """Assigns all weights of a model, by the table of weight names."""
    parameters = dict(model.named_parameters())
    assert set(parameters) == {weight.hugging_face for weight in weights}
    with torch.no_grad():
        for weight in weights:
            value = torch.tensor(values[weight.path])
            parameters[weight.hugging_face].copy_(
                value.T if weight.transposed else value
            )


def _loss(
    model: transformers.AlbertForPreTraining,
    batch: Mapping[str, np.ndarray],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's total loss, and the sentence-order loss in it."""
    example, slot = np.nonzero(batch["masked_lm_weights"])
    labels = torch.full(batch["input_ids"].shape, -100)
    labels[example, batch["masked_lm_positions"][example, slot]] = torch.tensor(
        batch["masked_lm_ids"][example, slot]
    ).long()
    order = torch.tensor(batch["next_sentence_labels"][:, 0]).long()
    outputs = model(
        input_ids=torch.tensor(batch["input_ids"]).long(),
        attention_mask=torch.tensor(batch["input_mask"]),
        token_type_ids=torch.tensor(batch["segment_ids"]).long(),
        labels=labels,
        sentence_order_label=order,
    )
    sentence = torch.nn.functional.cross_entropy(outputs.sop_logits, order)
    return outputs.loss, sentence


def zero_moments(
    parameters: Mapping[str, torch.nn.Parameter],
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The moments of parameters before the first step."""
    return {
        name: (torch.zeros_like(p), torch.zeros_like(p))
        for name, p in parameters.items()
    }


def update(
    parameters: Mapping[str, torch.nn.Parameter],
    moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    recipe: Recipe,
    step: int,
) -> None:
    """Updates parameters and moments in place."""
    squares = [p.grad.square().sum() for p in parameters.values()]
    norm = torch.stack(squares).sum().sqrt()
    scale = min(1.0, recipe.clip_norm / norm.item())
    rate = recipe.learning_rate_at(step)
    for name, parameter in parameters.items():
        gradient = parameter.grad * scale
        m, v = moments[name]
        m.copy_(recipe.beta_1 * m + (1 - recipe.beta_1) * gradient)
        v.copy_(recipe.beta_2 * v + (1 - recipe.beta_2) * gradient.square())
        update = m / (v.sqrt() + recipe.epsilon)
        # Biases and LayerNorm's weights have one dimension.
        if parameter.ndim > 1:
            update = update + recipe.weight_decay_rate * parameter
            if recipe.optimizer == "lamb":
                update = update * _trust_ratio(parameter, update)
        parameter.sub_(rate * update)


def _trust_ratio(weights: torch.Tensor, update: torch.Tensor) -> float:
    weights_norm = math.sqrt(weights.square().sum().item())
    update_norm = math.sqrt(update.square().sum().item())
    if weights_norm > 0 and update_norm > 0:
        return weights_norm / update_norm
    return 1.0
