"""Settings of sequence lengths, masking and training records."""

import dataclasses
import math

from albert_tf.config.settings import Config, parse_phases, setting
from albert_tf.errors import UserError

SENTENCE_OBJECTIVES = ("sop", "nsp", "none")


@dataclasses.dataclass(frozen=True)
class SequenceConfig(Config):
    """Lengths of a record, for building records and for training."""

    max_seq_length: int = setting(
        512,
        "L, number of tokens in an example, special tokens included.",
        at_least=5,
    )
    max_predictions_per_seq: int = setting(
        77,
        "P, largest number of masked tokens in an example: masked_lm_prob "
        "times max_seq_length, rounded up, e.g. 77 for 512 tokens and 15 %. "
        "With a smaller P, fewer are masked.",
        at_least=1,
        below="max_seq_length",
    )
    packing: str = setting(
        "none",
        "Number of examples in a training record. none: one, as in "
        "google-research/albert. best_fit: several, up to max_seq_length "
        "tokens in total, so that a record has little padding; tokens attend "
        "only to their own example. Evaluation records are never packed.",
        choices=("none", "best_fit"),
    )
    max_examples_per_row: int = setting(
        8,
        "K, largest number of examples in a packed record. Has no effect with "
        "--packing=none.",
        at_least=2,
        below=65,
    )


@dataclasses.dataclass(frozen=True)
class MaskingConfig(SequenceConfig):
    """Masking, for building records and for training.

    Training masks only records that are built with --masking=dynamic.
    """

    masked_lm_prob: float = setting(
        0.15,
        "Fraction of the tokens to mask. With 0.3, small models learned more "
        "from the same tokens (Wettig et al., 2023; docs/log.md). "
        "run_pretraining uses it only for records built with "
        "--masking=dynamic.",
        at_least=0.001,
        below=1,
    )
    ngram: int = setting(
        3,
        "N, length of the longest masked span, in words; spans of n words "
        "have probability p(n) ~ 1/n. run_pretraining uses it only for records "
        "built with --masking=dynamic.",
        at_least=1,
    )

    def describe_missing_predictions(self) -> str:
        """Warns of a P too small for `masked_lm_prob`; "" if it fits."""
        allowed = self.max_predictions_per_seq
        needed = round(self.masked_lm_prob * self.max_seq_length)
        if needed <= allowed:
            return ""
        return (
            f"masked_lm_prob={self.masked_lm_prob:g} of {self.max_seq_length} "
            f"tokens are {needed}, but max_predictions_per_seq={allowed} masks "
            f"at most {allowed}: set --max_predictions_per_seq={needed}"
        )


@dataclasses.dataclass(frozen=True)
class DataConfig(MaskingConfig):
    """Training and evaluation records, and how they are read.

    Example:
        >>> config = DataConfig(
        ...     dataset=("wiki=wiki/*.tfrecord", "books=books/*.tfrecord"),
        ...     data_schedule="0:wiki,125000:wiki+books",
        ... )
        >>> config.data_phases()
        ((0, ('wiki',)), (125000, ('wiki', 'books')))
    """

    # Paths may change: `runs/directory.py` compares names and checksums of
    # the shards.
    input_file: tuple[str, ...] = setting(
        (),
        "Training records: comma-separated files or globs, local or gs://, "
        "e.g. build/records/train/*.tfrecord. Records of several directories "
        "are interleaved in proportion to the number of records in each.",
        affects="nothing",
    )
    eval_input_file: tuple[str, ...] = setting(
        (),
        "Records of the held-out set, to evaluate on: comma-separated files "
        "or globs, e.g. build/records/eval/*.tfrecord.",
        affects="nothing",
    )
    global_batch_size: int = setting(
        4096,
        "Number of records in a step, over all replicas. A record is one "
        "example or, with --packing=best_fit, a row of several; in "
        "fine-tuning, a text or a pair of texts, a question with all its "
        "choices, or one window of a document.",
        at_least=1,
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Number of micro-batches that each replica splits its batch into, to "
        "save memory. The result of a step is the same up to rounding, but "
        "each micro-batch draws its own dropout.",
        at_least=1,
        divides="global_batch_size",
        affects="nothing",
    )
    eval_batch_size: int = setting(
        64,
        "Number of examples in a batch of the evaluation, over all replicas.",
        at_least=1,
        affects="nothing",
    )
    max_eval_steps: int = setting(
        100,
        "Largest number of batches in an evaluation; 0 evaluates all records.",
        at_least=0,
        affects="nothing",
    )
    shuffle_block_size: int = setting(
        16384,
        "Number of consecutive records that are shuffled together while "
        "reading, over all input_lanes; records are already shuffled when "
        "they are built. 1 keeps the order of the records in each shard.",
        at_least=1,
    )
    input_lanes: int = setting(
        1,
        "Number of separate streams of shards. Each fills an equal part of "
        "every batch, so that a host reads only the shards of its own part. "
        "Use a multiple of the number of hosts that divides the number of "
        "shards of each directory or dataset, e.g. 64. The order of the "
        "records depends on input_lanes, not on the hosts.",
        at_least=1,
        divides="global_batch_size",
    )
    dataset: tuple[str, ...] = setting(
        (),
        "A named set of training records for data_schedule, as NAME=FILES, "
        "where FILES are comma-separated files or globs. Give the flag once "
        "per set, e.g. --dataset='wiki=gs://bucket/wiki/train/*.tfrecord'.",
        repeated=True,
        affects="nothing",
    )
    data_schedule: str = setting(
        "",
        "Training records by step, as STEP:NAME[+NAME...],..., instead of "
        "input_file, e.g. 0:wiki,125000:wiki+books. Define each name with "
        "dataset. + joins sets: their records are interleaved in proportion "
        "to the sizes of the sets, so that an epoch reads each record once, "
        "or to weights that add up to 1, e.g. 0:wiki*0.7+books*0.3.",
    )
    synthetic_input: bool = setting(
        False,
        "Train on made-up batches instead of input_file, to measure the speed "
        "of training without records. The model learns nothing.",
    )

    def check(self) -> None:
        super().check()
        self.data_phases()
        if self.synthetic_input and (self.input_file or self.data_schedule):
            raise UserError(
                "synthetic_input replaces input_file and data_schedule: only "
                "one may be given"
            )

    def datasets(self) -> dict[str, tuple[str, ...]]:
        """The files or globs of each named dataset.

        Raises:
            UserError: If one is malformed, or a name is used twice.
        """
        found: dict[str, tuple[str, ...]] = {}
        for text in self.dataset:
            name, _, files = text.partition("=")
            if not name.isidentifier() or not files or name in found:
                raise UserError(
                    "dataset must be NAME=FILES, each name once",
                    received=repr(text),
                    remedy="Example: --dataset=wiki=records/wiki/*.tfrecord",
                )
            found[name] = tuple(files.split(","))
        return found

    def data_phases(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """`data_schedule` as (first step, dataset names), steps rising.

        A name may end with a weight, e.g. "wiki*0.7".

        Raises:
            UserError: If the schedule is malformed, or names an unknown
                dataset.
        """
        datasets = self.datasets()
        if not self.data_schedule:
            if datasets:
                raise UserError(
                    "dataset needs a data_schedule that names it",
                    received=", ".join(datasets),
                    remedy="Example: --data_schedule=0:wiki",
                )
            return ()
        if self.input_file:
            raise UserError(
                "data_schedule replaces input_file: only one may be given",
                received=f"{self.data_schedule!r} and {self.input_file!r}",
            )

        def parse_names(text: str) -> tuple[str, ...]:
            names = tuple(text.split("+"))
            parts = [name.partition("*") for name in names]
            if not {name for name, *_ in parts} <= set(datasets):
                raise ValueError(f"not names of --dataset: {text!r}")
            if "*" in text:
                weights = [float(weight or 0) for *_, weight in parts]
                if min(weights) <= 0 or not math.isclose(sum(weights), 1):
                    raise UserError(
                        "the weights of data_schedule must be above 0 and add "
                        "up to 1",
                        received=repr(text),
                        remedy="Example: 0:wiki*0.7+books*0.3",
                    )
            return names

        try:
            return parse_phases(self.data_schedule, parse_names)
        except ValueError:
            raise UserError(
                "data_schedule must be STEP:NAME[+NAME...],... with rising "
                "steps from 0 and names of --dataset",
                received=f"{self.data_schedule!r}, with "
                f"{', '.join(datasets) or 'no dataset'}",
                remedy="Example: 0:wiki,125000:wiki+books",
            ) from None
