"""Writes outputs of Hugging Face's ALBERT to tests/testdata/huggingface_*.npz.

Needs the `interop` extra. Run it after a variable is renamed or a case is
added, and note the printed versions in tests/testdata/README.md:

    python -m tests.helpers.make_huggingface_arrays
"""

import json
import os
import tempfile

import numpy as np

from albert_tf.config import ModelConfig
from albert_tf.interop import hugging_face
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.modeling.pretrainer import AlbertPretrainer

TESTDATA = os.path.join(os.path.dirname(__file__), "..", "testdata")

# Sizes differ in every dimension; H is 24, but 20 where E equals it.
SIZES = {
    "vocab_size": 61,
    "embedding_size": 16,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
    "num_hidden_layers": 3,
}
UNFACTORIZED = SIZES | {
    "embedding_size": 20,
    "hidden_size": 20,
    "num_attention_heads": 5,
}
CASES = {
    "shared": ModelConfig.from_dict(SIZES),
    "groups": ModelConfig.from_dict(
        SIZES
        | {
            "num_hidden_layers": 5,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        }
    ),
    "unfactorized_unshared": ModelConfig.from_dict(
        UNFACTORIZED | {"parameter_sharing": "none"}
    ),
}


def random_weights(
    variables: dict[str, tuple[int, ...]], seed: int
) -> dict[str, np.ndarray]:
    """Weights so large that every layer affects the outputs.

    Args:
        variables: Shapes by path.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for path, shape in variables.items():
        values = rng.normal(size=shape)
        if len(shape) == 2:
            values *= 2.0 / np.sqrt(shape[0])
        else:
            values = 0.3 * values + path.endswith("gamma")
        weights[path] = values.astype(np.float32)
    return weights


def random_batch(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Four examples of up to 13 tokens, two of them padded."""
    rng = np.random.default_rng(seed)
    lengths = np.array([13, 5, 13, 9])[:, np.newaxis]
    positions = np.arange(13)[np.newaxis]
    mask = (positions < lengths).astype(int)
    masked = np.array([[1, 4, 7], [2, 3, 0], [5, 11, 12], [8, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    return {
        "input_ids": rng.integers(5, config.vocab_size, mask.shape) * mask,
        "input_mask": mask,
        "segment_ids": (positions >= lengths // 2) * mask,
        "masked_lm_positions": masked,
        "masked_lm_ids": rng.integers(5, config.vocab_size, masked.shape)
        * weights,
        "masked_lm_weights": weights.astype(np.float32),
        "next_sentence_labels": np.array([[0], [1], [1], [0]]),
    }


def run_huggingface(
    config: ModelConfig,
    weights: dict[str, np.ndarray],
    batch: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Outputs and losses of transformers, by albert_tf's names."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        hugging_face.write(ModelWeights(config, "sop", weights), folder)
        model = transformers.AlbertForPreTraining.from_pretrained(
            folder,
            # Not the fused kernels: in some processes, their outputs differ
            # by more than rounding errors.
            attn_implementation="eager",
        )

    examples = np.arange(len(batch["input_ids"]))[:, np.newaxis]
    real = batch["masked_lm_weights"] > 0
    labels = np.full(batch["input_ids"].shape, -100)
    rows = np.broadcast_to(examples, real.shape)[real]
    labels[rows, batch["masked_lm_positions"][real]] = batch["masked_lm_ids"][
        real
    ]
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]),
        "attention_mask": torch.tensor(batch["input_mask"]),
        "token_type_ids": torch.tensor(batch["segment_ids"]),
    }
    order = torch.tensor(batch["next_sentence_labels"][:, 0])
    with torch.no_grad():
        encoded = model.albert(**inputs)
        answers = model(
            **inputs, labels=torch.tensor(labels), sentence_order_label=order
        )
        sentence_loss = torch.nn.functional.cross_entropy(
            answers.sop_logits, order
        )
    logits = answers.prediction_logits.numpy()
    return {
        "sequence_output": encoded.last_hidden_state.numpy(),
        "pooled_output": encoded.pooler_output.numpy(),
        "mlm_logits": logits[examples, batch["masked_lm_positions"]],
        "sentence_logits": answers.sop_logits.numpy(),
        "total_loss": answers.loss.numpy(),
        "sentence_loss": sentence_loss.numpy(),
    }


def build_model(config: ModelConfig) -> AlbertPretrainer:
    """A float32 model whose variables exist."""
    model = AlbertPretrainer(config)
    model.build()
    return model


def main() -> None:
    import torch
    import transformers

    for index, (name, config) in enumerate(CASES.items()):
        variables = build_model(config).variables
        shapes = {v.path: tuple(v.shape) for v in variables}
        weights = random_weights(shapes, seed=index)
        batch = random_batch(config, seed=index)
        outputs = run_huggingface(config, weights, batch)
        path = os.path.join(TESTDATA, f"huggingface_{name}.npz")
        np.savez_compressed(
            path,
            config=json.dumps(config.to_dict()),
            **{f"weights:{key}": value for key, value in weights.items()},
            **{f"batch:{key}": value for key, value in batch.items()},
            **{f"outputs:{key}": value for key, value in outputs.items()},
        )
        print(f"{os.path.relpath(path)}: {os.path.getsize(path):,} bytes")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
