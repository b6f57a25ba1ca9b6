"""Run one contender of `benchmarks.train_step`.

    python benchmarks/train_step_contenders.py albert_tf '{"batch": 8, ...}'

Makes the model and takes two steps that are not measured. Then, for each line
on standard input, it takes one step and prints its time and the largest
resident memory so far. It imports only the packages of the named contender, so
that it runs in an environment without the packages of the others.
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LEARNING_RATE = 1e-4
DECAY = 0.01
NOT_DECAYED = ["LayerNorm", "layer_norm", "bias", "norm"]


@dataclasses.dataclass(frozen=True)
class Work:
    """A training step of ALBERT-base: both losses, LAMB."""

    batch: int
    length: int
    predictions: int
    bfloat16: bool  # in matrix products
    dropout: float  # of hidden states and attention probabilities
    threads: int  # for one operation

    def arrays(self) -> dict[str, np.ndarray]:
        """A batch of random tokens without padding, as the input has it."""
        rng = np.random.default_rng(0)
        shape = (self.batch, self.length)
        all_positions = np.tile(np.arange(self.length), (self.batch, 1))
        shuffled = rng.permuted(all_positions, axis=1)
        positions = np.sort(shuffled[:, : self.predictions])
        arrays: dict[str, Any] = {
            "input_ids": rng.integers(5, 30_000, shape),
            "input_mask": np.ones(shape),
            "segment_ids": np.sort(rng.integers(0, 2, shape)),
            "masked_lm_positions": positions,
            "masked_lm_ids": rng.integers(5, 30_000, positions.shape),
            "next_sentence_labels": rng.integers(0, 2, (self.batch, 1)),
        }
        arrays = {k: v.astype(np.int32) for k, v in arrays.items()}
        weights = np.ones_like(positions, np.float32)
        return {**arrays, "masked_lm_weights": weights}


Step = Callable[[], float]


def albert_tf(
    work: Work, remat: bool = False, runtime: str = "tensorflow"
) -> Step:
    """The step of `--remat` and `--runtime`."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    tf = _tensorflow(work)
    from albert_tf import config
    from albert_tf.cluster import strategy as strategies
    from albert_tf.training import pjrt_steps, schedules, train_step
    from albert_tf.training.pretraining import Pretraining

    strategies.keep_freed_memory()
    batch = {k: tf.constant(v) for k, v in work.arrays().items()}
    run = config.PretrainingConfig(
        model=config.ModelConfig(),
        data=config.DataConfig(
            input_file=("none",),
            global_batch_size=work.batch,
            max_seq_length=work.length,
            max_predictions_per_seq=work.predictions,
        ),
        optimizer=config.OptimizerConfig(
            learning_rate=LEARNING_RATE, num_warmup_steps=0
        ),
        distribution=config.DistributionConfig(
            precision="mixed_bfloat16" if work.bfloat16 else "float32",
            remat=remat,
            runtime=runtime,
        ),
        training=config.TrainingConfig(num_train_steps=1000),
    )
    rates = schedules.DropoutRates(work.dropout, work.dropout)
    if runtime == "pjrt":
        strategy: Any = strategies.make_strategy(run.distribution)
        with strategy.scope():
            state = train_step.make_state(run, Pretraining(run))
        steps = pjrt_steps.PjrtSteps(strategy, state, run)
        totals = dict.fromkeys(
            train_step.metric_names(run, state.objective), 0.0
        )
        arrays = strategy.join_rows([work.arrays()])
        batches = itertools.repeat(arrays)
        one = tf.constant(1)
        return lambda: float(steps(batches, totals, one, rates).totals["loss"])
    state = train_step.make_state(run, Pretraining(run))
    replica_step = train_step.make_replica_step(state, run)

    @tf.function
    def step(batch: dict) -> Any:
        return tf.distribute.get_strategy().run(
            lambda: replica_step(batch, rates)
        )

    return lambda: float(step(batch)["loss"])


def keras_hub(work: Work) -> Step:
    """KerasHub's backbone and head on TensorFlow, Keras' own LAMB."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tf = _tensorflow(work)
    import keras
    import keras_hub

    if work.bfloat16:
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.AlbertBackbone(
        vocabulary_size=30_000,
        num_layers=12,
        num_heads=12,
        embedding_dim=128,
        hidden_dim=768,
        intermediate_dim=3072,
        dropout=work.dropout,
        max_sequence_length=512,
    )
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, True),
        layer_norm_epsilon=1e-12,
    )
    sentence = keras.layers.Dense(2, dtype="float32")
    sentence.build((None, 768))
    head.build((None, work.length, 768))
    variables = [
        *backbone.trainable_variables,
        *(v for v in head.trainable_variables if "token_emb" not in v.path),
        *sentence.trainable_variables,
    ]
    optimizer = keras.optimizers.Lamb(LEARNING_RATE, weight_decay=DECAY)
    optimizer.exclude_from_weight_decay(var_names=NOT_DECAYED)
    optimizer.build(variables)
    batch = {k: tf.constant(v) for k, v in work.arrays().items()}

    inputs = {
        "token_ids": batch["input_ids"],
        "segment_ids": batch["segment_ids"],
        "padding_mask": batch["input_mask"],
    }

    @tf.function
    def step(inputs: dict, batch: dict) -> Any:
        with tf.GradientTape() as tape:
            outputs = backbone(inputs, training=True)
            hidden = outputs["sequence_output"]
            logits = head(hidden, batch["masked_lm_positions"])
            sentence_logits = sentence(outputs["pooled_output"])
            labels = batch["masked_lm_ids"]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits
            loss = tf.reduce_mean(
                losses(labels, tf.cast(logits, tf.float32))
            ) + tf.reduce_mean(
                losses(batch["next_sentence_labels"][:, 0], sentence_logits)
            )
        gradients = tape.gradient(loss, variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return lambda: float(step(inputs, batch))


def hugging_face(work: Work, compiled: bool = False) -> Step:
    """Hugging Face's model on PyTorch, with fused attention.

    On the first GPU, if there is one. Its own loss has logits at all positions;
    here as in the other contenders, only masked positions have logits.
    `compiled`: by torch.compile.
    """
    import torch
    import transformers

    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(
            vocab_size=30_000,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            hidden_dropout_prob=work.dropout,
            attention_probs_dropout_prob=work.dropout,
            classifier_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    ).train()
    model.to(device)
    batch = {
        k: torch.tensor(v).to(device, torch.long)
        for k, v in work.arrays().items()
    }
    rows = torch.arange(work.batch, device=device)[:, None]
    positions = batch["masked_lm_positions"]
    cross_entropy = torch.nn.functional.cross_entropy
    update = _make_torch_lamb(list(model.named_parameters()))

    def compute_loss() -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=work.bfloat16):
            hidden, pooled = model.albert(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
            )[:2]
            logits = model.predictions(hidden[rows, positions])
            return cross_entropy(
                logits.float().flatten(0, 1), batch["masked_lm_ids"].flatten()
            ) + cross_entropy(
                model.sop_classifier(pooled).float(),
                batch["next_sentence_labels"][:, 0],
            )

    if compiled:
        compute_loss = torch.compile(compute_loss)

    def step() -> float:
        loss = compute_loss()
        loss.backward()
        update()
        model.zero_grad()
        return float(loss.detach())

    return step


def _make_torch_lamb(parameters: list[tuple[str, Any]]) -> Callable[[], None]:
    """LAMB, which PyTorch lacks, with clipping, by multi-tensor operations."""
    import torch

    tensors = [p for _, p in parameters]
    adapted = [
        not any(part in name for part in NOT_DECAYED) for name, _ in parameters
    ]
    m = [torch.zeros_like(p) for p in tensors]
    v = [torch.zeros_like(p) for p in tensors]

    @torch.no_grad()
    def update() -> None:
        torch.nn.utils.clip_grad_norm_(tensors, 1.0, foreach=True)
        gradients = [p.grad for p in tensors]
        torch._foreach_lerp_(m, gradients, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(v)
        torch._foreach_add_(roots, 1e-6)
        updates = torch._foreach_div(m, roots)
        for p, change, adapt in zip(tensors, updates, adapted, strict=True):
            if adapt:
                change.add_(p, alpha=DECAY)
                # Without a value on the host, for which a GPU would wait.
                ratio = p.norm() / change.norm()
                valid = torch.isfinite(ratio) & (ratio > 0)
                change.mul_(torch.where(valid, ratio, 1.0))
            p.add_(change, alpha=-LEARNING_RATE)

    return update


def _tensorflow(work: Work) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(work.threads)
    tf.config.threading.set_inter_op_parallelism_threads(work.threads)
    return tf


CONTENDERS: dict[str, Callable[[Work], Step]] = {
    "albert_tf": albert_tf,
    "albert_tf_pjrt": functools.partial(albert_tf, runtime="pjrt"),
    "albert_tf_remat": functools.partial(albert_tf, remat=True),
    "keras_hub": keras_hub,
    "hugging_face": hugging_face,
    "hugging_face_compiled": functools.partial(hugging_face, compiled=True),
}


def main() -> None:
    """Takes one step for each line on standard input."""
    name, work = sys.argv[1:]
    step = CONTENDERS[name](Work(**json.loads(work)))
    losses = [step(), step()]
    print(json.dumps({"losses": losses}), flush=True)
    usage = resource.RUSAGE_SELF
    for _ in sys.stdin:
        begin, cpu_begin = time.monotonic(), time.process_time()
        loss = step()
        answer = {
            "s": time.monotonic() - begin,
            "cpu_s": time.process_time() - cpu_begin,
            "peak_bytes": resource.getrusage(usage).ru_maxrss * 1024,
            "loss": loss,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
