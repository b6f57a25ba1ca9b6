r"""Compare speed and memory of a training step with other implementations.

    python -m benchmarks.train_step \
        --python_keras_hub=venv-keras-hub/bin/python

All contenders train ALBERT-base with both losses on the same batch, on this
CPU. Each runs in its own process, which needs only the packages of that
contender; one whose packages are missing is left out. They take turns, one step
per round, so that other load affects all of them equally. Prints a Markdown
table.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from albert_tf import config as settings
from albert_tf.config import Config, flags, setting

LEARNING_RATE = 1e-4
DECAY = 0.01
SIZES = (128, 8), (512, 2)  # tokens of a row, rows
DROPOUT = 0.1  # of hidden states and attention probabilities


@dataclasses.dataclass(frozen=True)
class Work:
    """The batch of a training step, and its precision."""

    batch: int
    length: int
    predictions: int
    bfloat16: bool  # in matrix products

    def arrays(self) -> dict[str, np.ndarray]:
        """A batch of random tokens without padding, as the input has it."""
        rng = np.random.default_rng(0)
        shape = (self.batch, self.length)
        masked = (self.batch, self.predictions)
        arrays = {
            "input_ids": rng.integers(5, 30_000, shape),
            "input_mask": np.ones(shape),
            "segment_ids": np.sort(rng.integers(0, 2, shape)),
            "masked_lm_positions": np.sort(rng.choice(self.length, masked)),
            "masked_lm_ids": rng.integers(5, 30_000, masked),
            "next_sentence_labels": rng.integers(0, 2, (self.batch, 1)),
        }
        arrays = {k: v.astype(np.int32) for k, v in arrays.items()}
        return {**arrays, "masked_lm_weights": np.ones(masked, np.float32)}


Step = Callable[[], float]


def albert_tf(work: Work) -> Step:
    """The trainer's step."""
    import tensorflow as tf

    from albert_tf.cluster import strategy as strategies
    from albert_tf.training import schedules, train_step
    from albert_tf.training.pretraining import Pretraining

    strategies.keep_freed_memory()
    batch = {k: tf.constant(v) for k, v in work.arrays().items()}
    run = settings.PretrainingConfig().replace(
        input_file=("none",),
        global_batch_size=work.batch,
        max_seq_length=work.length,
        max_predictions_per_seq=work.predictions,
        learning_rate=LEARNING_RATE,
        num_warmup_steps=0,
        num_train_steps=1000,
        precision="mixed_bfloat16" if work.bfloat16 else "float32",
    )
    rates = schedules.DropoutRates(DROPOUT, DROPOUT)
    state = train_step.make_state(run, Pretraining(run))
    replica_step = train_step.make_replica_step(state, run, rates)

    @tf.function
    def step() -> Any:
        return tf.distribute.get_strategy().run(lambda: replica_step(batch))

    loss = train_step.metric_names(run, state.objective).index("loss")
    return lambda: float(step()[loss])


def keras_hub(work: Work) -> Step:
    """KerasHub's backbone and head on TensorFlow, Keras' own LAMB."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
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
        dropout=DROPOUT,
        max_sequence_length=512,
    )
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, True),
        layer_norm_epsilon=1e-12,
        dtype=keras.config.dtype_policy(),
    )
    positions = keras.Input(
        (work.predictions,), dtype="int32", name="positions"
    )
    sentence_logits = keras.layers.Dense(2)(backbone.output["pooled_output"])
    model = keras.Model(
        {**backbone.input, "positions": positions},
        [head(backbone.output["sequence_output"], positions), sentence_logits],
    )
    optimizer = keras.optimizers.Lamb(
        LEARNING_RATE, weight_decay=DECAY, global_clipnorm=1.0
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, [loss, loss], jit_compile=False)
    arrays = work.arrays()
    inputs = {
        "token_ids": arrays["input_ids"],
        "segment_ids": arrays["segment_ids"],
        "padding_mask": arrays["input_mask"],
        "positions": arrays["masked_lm_positions"],
    }
    labels = [arrays["masked_lm_ids"], arrays["next_sentence_labels"]]
    return lambda: float(model.train_on_batch(inputs, labels)[0])


def hugging_face(work: Work, compiled: bool = False) -> Step:
    """Hugging Face's model on PyTorch, with fused attention.

    Its own loss has logits at all positions; here as in the other contenders,
    only masked positions have logits. PyTorch has no LAMB: AdamW is used, which
    takes less time. `compiled`: by torch.compile.
    """
    import torch
    import transformers

    base = dataclasses.asdict(settings.ModelConfig())
    base["hidden_act"] = "gelu_new"
    model: Any = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**base, attn_implementation="sdpa")
    ).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, weight_decay=DECAY, fused=True
    )
    batch = {k: torch.tensor(v).long() for k, v in work.arrays().items()}
    rows = torch.arange(work.batch)[:, None]
    cross_entropy = torch.nn.functional.cross_entropy

    def compute_loss() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=work.bfloat16):
            hidden, pooled = model.albert(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
            )[:2]
            positions = batch["masked_lm_positions"]
            logits = model.predictions(hidden[rows, positions])
            sentence_logits = model.sop_classifier(pooled)
        masked_lm_loss = cross_entropy(
            logits.float().flatten(0, 1), batch["masked_lm_ids"].flatten()
        )
        sentence_loss = cross_entropy(
            sentence_logits.float(), batch["next_sentence_labels"][:, 0]
        )
        return masked_lm_loss + sentence_loss

    if compiled:
        compute_loss = torch.compile(compute_loss)

    def step() -> float:
        loss = compute_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


CONTENDERS: dict[str, Callable[[Work], Step]] = {
    "albert_tf": albert_tf,
    "keras_hub": keras_hub,
    "hugging_face": hugging_face,
    "hugging_face_compiled": functools.partial(hugging_face, compiled=True),
}


def run_contender(name: str, work: Work) -> None:
    """Takes one step for each line on standard input, and prints its costs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    step = CONTENDERS[name](work)
    for _ in range(2):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        step()
        seconds = time.monotonic() - begin
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(seconds, peak_kb / 1e3, flush=True)


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Rounds, batches and contenders."""

    python_keras_hub: str = setting(
        sys.executable,
        "Python with tensorflow and keras-hub, e.g. venv-keras-hub/bin/python.",
    )
    rounds: int = setting(3, "Timed steps of each contender.", at_least=1)
    contenders: tuple[str, ...] = setting(
        tuple(CONTENDERS), "Which to measure, comma-separated, e.g. albert_tf."
    )


def main(config: BenchmarkConfig) -> None:
    """Measures and prints."""
    print("| L x B | precision | contender | tokens/s, median | peak MB |")
    print("|---|---|---|---|---|")
    for (length, batch), bfloat16 in itertools.product(SIZES, (True, False)):
        # 15 %, as the records of that length have them.
        predictions = round(0.15 * length + 0.5)
        work = Work(batch, length, predictions, bfloat16)
        precision = "bfloat16" if bfloat16 else "float32"
        for name, costs in measure(config, work).items():
            seconds, megabytes = np.median(costs, axis=0)
            print(
                f"| {length} x {batch} | {precision} | {name} "
                f"| {batch * length / seconds:,.0f} | {megabytes:,.0f} |",
                flush=True,
            )


def measure(config: BenchmarkConfig, work: Work) -> dict[str, list]:
    """Seconds and peak memory of each step of each contender."""
    processes = {}
    for name in config.contenders:
        process = start(config, name, work)
        assert process.stdout
        if process.stdout.readline():
            processes[name] = process
        else:
            print(f"{name}: left out, see above", file=sys.stderr)
    costs: dict[str, list] = {name: [] for name in processes}
    for _ in range(config.rounds):
        for name, process in processes.items():
            assert process.stdin and process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
            costs[name].append([float(cost) for cost in line.split()])
    for process in processes.values():
        process.communicate()
    return costs


def start(
    config: BenchmarkConfig, name: str, work: Work
) -> subprocess.Popen[str]:
    """Starts a contender; it prints a line when it is ready."""
    is_keras_hub = name == "keras_hub"
    python = config.python_keras_hub if is_keras_hub else sys.executable
    program = (
        "from benchmarks.train_step import Work, run_contender; "
        f"run_contender({name!r}, {work!r})"
    )
    return subprocess.Popen(
        [python, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
        # Waiting threads must not spin while another contender runs.
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )


if __name__ == "__main__":
    flags.run(main, BenchmarkConfig)
