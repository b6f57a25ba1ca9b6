"""Settings of sequence lengths, masking and training records."""

import dataclasses

from albert_tf.config.settings import Config, setting

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
    label_vocab_size: int = setting(
        0,
        "Number of labels of tokens: the most frequent words of the field "
        "`words`, and no label for all others. 0: records have no labels. "
        "run_pretraining needs it for --token_label_loss_weight.",
        at_least=0,
        affects="model",
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
    """Training and evaluation records, and how they are read."""

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
        "shards of each directory, e.g. 64. The order of the "
        "records depends on input_lanes, not on the hosts.",
        at_least=1,
        divides="global_batch_size",
    )
    synthetic_input: bool = setting(
        False,
        "Train on made-up batches instead of input_file, to measure the speed "
        "of training without records. The model learns nothing.",
    )
