"""Every setting: its name, type, default, help, and what is refused.

Frozen dataclasses, one a room of the system. `albert_tf/config/flags.py` makes the
command-line flags of them, so a default is written here and nowhere else.
A dataclass refuses wrong values when it is made, by `UserError`. No
TensorFlow is imported here: help and refusals come at once.
"""

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from typing import Any, Self

from albert_tf.errors import UserError
from albert_tf.io.files import load_json


def setting(
    default: Any,
    help: str,  # noqa: A002
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    below: float | None = None,
    repeated: bool = False,
) -> Any:
    """A dataclass field that is also a command-line flag.

    Args:
        default: The value when the flag is not given.
        help: What it is, with its unit and an example where it has one.
        choices: The values allowed, for an enumeration.
        at_least: The smallest number allowed.
        below: The number that the value must stay under.
        repeated: The flag is given once an item instead of once with
            commas, for items that hold commas themselves.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "at_least": at_least,
            "below": below,
            "repeated": repeated,
        },
    )


def flag_name(name: str) -> str:
    """The flag of a setting; `from_` gives --from, a keyword of Python."""
    return name.removesuffix("_")


def fields_with_types(
    config_class: type,
) -> list[tuple[dataclasses.Field, Any]]:
    """The fields of a config dataclass, each with its resolved type."""
    hints = typing.get_type_hints(config_class)
    return [(f, hints[f.name]) for f in dataclasses.fields(config_class)]


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of the settings: checks of type, choice and range."""

    def __post_init__(self) -> None:
        for field, field_type in fields_with_types(type(self)):
            value = getattr(self, field.name)
            if field_type is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            _check_type(field.name, value, field_type)
            _check_range(field.name, value, field.metadata)
        self.check()

    def check(self) -> None:
        """Refuses combinations that cannot work; subclasses override."""

    def require(self, *names: str) -> None:
        """Refuses empty values of settings that a command cannot do without.

        Raises:
            UserError: Naming the first setting that is empty.
        """
        for name in names:
            if not find_setting(self, name):
                raise UserError(
                    f"--{flag_name(name)} is required",
                    remedy="See --help for its form and an example.",
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries and lists, ready for JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """The reverse of `to_dict`; keys left out take their default.

        Args:
            values: Settings by name; nested for nested dataclasses.
            source: Where the values come from, for the message of an error.

        Raises:
            UserError: For an unknown key, a wrong type or a refused value.
        """
        where = f"{source}: " if source else ""
        known = {f.name: t for f, t in fields_with_types(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise UserError(
                f"{where}unknown key {', '.join(unknown)}",
                remedy=f"Known keys: {', '.join(sorted(known))}.",
            )
        made: dict[str, Any] = {}
        for name, value in values.items():
            field_type = known[name]
            if isinstance(field_type, type) and issubclass(field_type, Config):
                made[name] = field_type.from_dict(value, source)
            elif field_type == tuple[str, ...] and isinstance(value, list):
                made[name] = tuple(value)
            else:
                made[name] = value
        try:
            return cls(**made)
        except UserError as error:
            raise UserError(f"{where}{error}") from None


def find_setting(config: Config, name: str) -> Any:
    """The value of the setting `name` in a config or one nested in it.

    Raises:
        KeyError: If there is no such setting.
    """
    for field, _field_type in fields_with_types(type(config)):
        value = getattr(config, field.name)
        if field.name == name:
            return value
        if isinstance(value, Config):
            try:
                return find_setting(value, name)
            except KeyError:
                pass
    raise KeyError(name)


def _check_type(name: str, value: Any, field_type: Any) -> None:
    if field_type == tuple[str, ...]:
        right = isinstance(value, tuple) and all(
            isinstance(item, str) for item in value
        )
        wanted = "a list of strings"
    else:
        # bool is a subclass of int, so compare the type itself.
        right = type(value) is field_type or (
            issubclass(field_type, Config) and isinstance(value, field_type)
        )
        wanted = f"of type {field_type.__name__}"
    if not right:
        raise UserError(f"{name} must be {wanted}", received=repr(value))


def _check_range(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    choices = rules.get("choices")
    if choices and value not in choices:
        raise UserError(
            f"{name} must be one of {', '.join(choices)}", received=repr(value)
        )
    at_least, below = rules.get("at_least"), rules.get("below")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number", received=value)
    if at_least is not None and value < at_least:
        raise UserError(f"{name} must be at least {at_least}", received=value)
    if below is not None and value >= below:
        raise UserError(f"{name} must be below {below}", received=value)


# --- the model --------------------------------------------------------------

PARAMETER_SHARING = ("all", "attention", "ffn", "none")
SENTENCE_OBJECTIVES = ("sop", "nsp", "none")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """The architecture, in the schema of the published `albert_config.json`.

    `net_structure_type`, `gap_size`, `num_memory_blocks`,
    `down_scale_factor` and `layers_to_keep` stand in published files and
    have no effect in the released code of google-research/albert, and have
    none here.
    `parameter_sharing` is ours (paper, section 3.1 and Table 4).
    """

    vocab_size: int = setting(30000, "Pieces of the vocabulary.", at_least=8)
    embedding_size: int = setting(
        128, "E, width of the factorized embeddings.", at_least=1
    )
    hidden_size: int = setting(768, "H, width of the encoder.", at_least=1)
    num_hidden_layers: int = setting(12, "Layers applied.", at_least=1)
    num_hidden_groups: int = setting(
        1, "Groups of layers; parameters are shared in a group.", at_least=1
    )
    inner_group_num: int = setting(
        1, "Blocks, each with its own parameters, in a layer.", at_least=1
    )
    num_attention_heads: int = setting(12, "Attention heads.", at_least=1)
    intermediate_size: int = setting(
        3072, "Width of the feed-forward layer.", at_least=1
    )
    hidden_act: str = setting(
        "gelu",
        "Activation of the feed-forward layer and of the masked-LM head; "
        "gelu is the tanh approximation, as in google-research/albert.",
        choices=("gelu", "relu", "tanh", "linear"),
    )
    hidden_dropout_prob: float = setting(
        0.1, "Dropout of embeddings and sublayers.", at_least=0, below=1
    )
    attention_probs_dropout_prob: float = setting(
        0.1, "Dropout of the attention probabilities.", at_least=0, below=1
    )
    max_position_embeddings: int = setting(
        512, "Longest sequence, in pieces.", at_least=4
    )
    type_vocab_size: int = setting(2, "Segment types.", at_least=2)
    initializer_range: float = setting(
        0.02, "Deviation of the truncated normal initializer.", at_least=0
    )
    parameter_sharing: str = setting(
        "all",
        "What layers share: all, the attention alone, the feed-forward "
        "layer (ffn) alone, or none (BERT).",
        choices=PARAMETER_SHARING,
    )
    net_structure_type: int = setting(0, "Published, without effect.")
    gap_size: int = setting(0, "Published, without effect.")
    num_memory_blocks: int = setting(0, "Published, without effect.")
    down_scale_factor: int = setting(1, "Published, without effect.")
    layers_to_keep: tuple[str, ...] = setting((), "Published, without effect.")

    def check(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                "hidden_size must be divisible by num_attention_heads",
                received=f"{self.hidden_size} and {self.num_attention_heads}",
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise UserError(
                "num_hidden_groups must be at most num_hidden_layers",
                received=f"{self.num_hidden_groups} and "
                f"{self.num_hidden_layers}",
            )
        if self.parameter_sharing == "none" and self.num_hidden_groups > 1:
            raise UserError(
                "num_hidden_groups must be 1 where parameter_sharing is none",
                received=self.num_hidden_groups,
            )
        unsupported = {
            "net_structure_type": (self.net_structure_type, 0),
            "layers_to_keep": (self.layers_to_keep, ()),
        }
        for name, (value, only) in unsupported.items():
            if value != only:
                raise UserError(
                    f"{name} must be {only!r}, the only value that the "
                    "released google-research/albert implements",
                    received=repr(value),
                )

    def group_of_layer(self, layer: int) -> int:
        """The group whose parameters a layer uses: groups are even runs."""
        return layer * self.num_hidden_groups // self.num_hidden_layers

    @classmethod
    def from_json_file(cls, path: str) -> Self:
        """Loads an `albert_config.json`, published or our own.

        Args:
            path: The file, local or gs://.

        Raises:
            UserError: For a missing file, bad JSON or refused values.
        """
        values = load_json(path)
        if not isinstance(values, dict):
            raise UserError(f"{path} must hold a JSON object")
        return cls.from_dict(values, source=path)


# --- data preparation -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Config):
    """What both commands of data preparation read."""

    input_file: tuple[str, ...] = setting(
        (),
        "Text: comma-separated files or globs, local or gs://, plain, .gz, "
        ".bz2 or .zst. One sentence per line, a blank line between "
        "documents, e.g. corpus/*.txt.gz; or JSON lines, see input_format.",
    )
    input_format: str = setting(
        "auto",
        "text, or JSON lines (jsonl) of a document each; auto takes .jsonl, "
        ".ndjson and .json for JSON lines.",
        choices=("auto", "text", "jsonl"),
    )
    tfds: str = setting(
        "",
        "A dataset of TensorFlow Datasets, read beside or instead of "
        "input_file, e.g. wikipedia/20230601.en.",
    )
    tfds_split: str = setting("train", "What of it, e.g. train or train[:10%].")
    tfds_data_dir: str = setting(
        "", "Where datasets are; default: that of TensorFlow Datasets."
    )
    text_field: str = setting(
        "text", "Field of JSON lines, or feature of a dataset, with the text."
    )
    sentence_breaker: str = setting(
        "none",
        "How lines become sentences: a line is one (none), or a line is a "
        "paragraph and is broken up (sentencex).",
        choices=("none", "sentencex"),
    )
    language: str = setting(
        "en", "Language of the text for sentencex, an ISO 639 code, e.g. de."
    )
    on_bad_utf8: str = setting(
        "error",
        "What to do with bytes that are not UTF-8: stop and name them, "
        "replace them by U+FFFD, or skip their line.",
        choices=("error", "replace", "skip"),
    )
    do_lower_case: bool = setting(True, "Lower-case the text.")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(CorpusConfig):
    """`python -m data_prep.train_tokenizer`."""

    model_prefix: str = setting(
        "",
        "Where to write PREFIX.model, PREFIX.vocab and PREFIX.json, e.g. "
        "build/spm.",
    )
    vocab_size: int = setting(
        30000, "Pieces, special pieces included.", at_least=8
    )
    vocabulary_kind: str = setting(
        "published",
        "Who normalises text: code around the model, as google-research/albert "
        "(published), or the model (self_contained), which then gives the same "
        "ids of raw text in any SentencePiece runtime.",
        choices=("published", "self_contained"),
    )
    character_coverage: float = setting(
        0.99995,
        "Share of the characters to cover, e.g. 0.9995 for Chinese or "
        "Japanese, which have thousands of rare ones.",
        at_least=0.5,
        below=1.0001,
    )
    byte_fallback: bool = setting(
        False,
        "Spell characters that are not covered as UTF-8 bytes, instead of "
        "<unk>; takes 256 of the pieces.",
    )
    input_sentence_size: int = setting(
        10_000_000,
        "Sentences drawn from the corpus at the most, each as likely.",
        at_least=1,
    )
    input_characters: int = setting(
        200_000_000,
        "Characters of these sentences at the most. Training needs 27 to 32 "
        "bytes of memory for each: a million English sentences have some 125 "
        "million characters, and need 3.5 GB.",
        at_least=1,
        below=2**31,
    )
    holdout_fraction: float = setting(
        0.01,
        "Share of the sentences, by a hash of their text, not trained on but "
        "reported on; 0 is no report.",
        at_least=0,
        below=1,
    )
    overwrite: bool = setting(
        False, "Replace a model made with other settings."
    )


@dataclasses.dataclass(frozen=True)
class SequenceConfig(Config):
    """Lengths of an example, of the builder and of the trainer."""

    max_seq_length: int = setting(
        512, "L, pieces in an example, special pieces included.", at_least=5
    )
    max_predictions_per_seq: int = setting(
        77,
        "P, masked pieces in an example at the most; 15 % of "
        "max_seq_length, rounded up, leaves none out.",
        at_least=1,
    )

    def check(self) -> None:
        if self.max_predictions_per_seq >= self.max_seq_length:
            raise UserError(
                "max_predictions_per_seq must be below max_seq_length",
                received=f"{self.max_predictions_per_seq} and "
                f"{self.max_seq_length}",
            )


@dataclasses.dataclass(frozen=True)
class MaskingConfig(SequenceConfig):
    """The rule of masking, of the builder and of the trainer.

    The trainer follows it where records are built with --masking=dynamic.
    """

    masked_lm_prob: float = setting(
        0.15,
        "Share of the pieces to mask; in training, of records built with "
        "--masking=dynamic.",
        at_least=0.001,
        below=1,
    )
    ngram: int = setting(
        3,
        "N, longest masked span in words, p(n) ~ 1/n; in training, of records "
        "built with --masking=dynamic.",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True)
class RecordsConfig(CorpusConfig, MaskingConfig):
    """`python -m data_prep.build_tfrecords`."""

    output_dir: str = setting(
        "",
        "Where to write train/ and, with --holdout_fraction, eval/: shards, "
        "metadata.json and the vocabulary, e.g. build/records.",
    )
    spm_model_file: str = setting(
        "", "SentencePiece model of the vocabulary, e.g. build/spm.model."
    )
    sentence_objective: str = setting(
        "sop",
        "Second segment: the text that follows, half of the time swapped with "
        "the first (sop); half of the time that of another document (nsp, "
        "BERT's); or no second segment (none).",
        choices=SENTENCE_OBJECTIVES,
    )
    masking: str = setting(
        "static",
        "Mask train/ when it is built (static, as published), or leave it to "
        "training, which masks each epoch anew (dynamic): --dupe_factor=1 is "
        "then enough. eval/ is always static.",
        choices=("static", "dynamic"),
    )
    deduplicate: bool = setting(
        False,
        "Keep one of several documents that are equal after normalisation.",
    )
    short_seq_prob: float = setting(
        0.1,
        "Share of the documents' passes cut to a random shorter length.",
        at_least=0,
        below=1.0001,
    )
    dupe_factor: int = setting(
        10, "Passes over the corpus, each masked anew.", at_least=1
    )
    holdout_fraction: float = setting(
        0.0,
        "Share of the documents, by a hash of their text, kept for evaluation.",
        at_least=0,
        below=1,
    )
    num_shards: int = setting(16, "Files of train/.", at_least=1)
    num_eval_shards: int = setting(1, "Files of eval/.", at_least=1)
    seed: int = setting(12345, "Seed of pairing and masking.", at_least=0)
    num_workers: int = setting(
        0,
        "Processes; 0 is one a core. Has no influence on the records.",
        at_least=0,
    )
    runner: str = setting(
        "local",
        "Who builds: the processes of this machine (local), or a runner of "
        "Apache Beam, e.g. DirectRunner, DataflowRunner, FlinkRunner, "
        "SparkRunner. Has no influence on the records.",
    )
    beam_option: tuple[str, ...] = setting(
        (),
        "An option of the Beam runner, NAME=VALUE; give the flag several "
        "times, e.g. --beam_option=region=us-central1.",
        repeated=True,
    )
    scratch_dir: str = setting(
        "",
        "Local directory for what is not shuffled yet, about a third of the "
        "size of the records; an interrupted build goes on from it. Default: "
        "in output_dir, or, if that is gs://, in the system's place for "
        "temporary files.",
    )
    overwrite: bool = setting(
        False, "Replace records made with other settings."
    )


@dataclasses.dataclass(frozen=True)
class InspectConfig(Config):
    """`python -m data_prep.inspect_records`."""

    input_file: tuple[str, ...] = setting(
        (),
        "Records: comma-separated directories, files or globs, local or "
        "gs://, e.g. build/records or build/records/train/*.tfrecord.",
    )
    spm_model_file: str = setting(
        "",
        "SentencePiece model, for records that have none beside them.",
    )
    num_examples: int = setting(
        2, "Examples to print as text, of each directory.", at_least=0
    )
    max_faults: int = setting(
        20, "Faults to print; the others are counted.", at_least=1
    )
    output_file: str = setting(
        "", "PNG to write with histograms, e.g. build/records.png."
    )
    num_workers: int = setting(
        0, "Processes; 0 is one a core, one a shard at the most.", at_least=0
    )


# --- pretraining ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DataConfig(MaskingConfig):
    """What the trainer reads."""

    input_file: tuple[str, ...] = setting(
        (),
        "Training records: comma-separated files or globs, local or gs://, "
        "e.g. build/records/train/*.tfrecord.",
    )
    eval_input_file: tuple[str, ...] = setting(
        (), "Held-out records, e.g. build/records/eval/*.tfrecord."
    )
    global_batch_size: int = setting(
        4096, "Examples in one update, over all replicas.", at_least=1
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Parts in which a replica works through its share of the batch, to "
        "save memory; the update is the same.",
        at_least=1,
    )
    eval_batch_size: int = setting(
        64, "Examples at a time in evaluation, over all replicas.", at_least=1
    )
    max_eval_steps: int = setting(
        100, "Batches of an evaluation at the most; 0 is all.", at_least=0
    )
    shuffle_block_size: int = setting(
        16384,
        "Records shuffled among themselves while reading; records are "
        "already shuffled when built. 1 reads in order.",
        at_least=1,
    )
    dataset: tuple[str, ...] = setting(
        (),
        "A named set of training records for data_schedule, NAME=FILES, with "
        "comma-separated files or globs; give the flag several times, e.g. "
        "--dataset='wiki=gs://bucket/wiki/train/*.tfrecord'.",
        repeated=True,
    )
    data_schedule: str = setting(
        "",
        "Training records by step, as STEP:NAME[+NAME...],..., instead of "
        "input_file, e.g. 0:wiki,125000:wiki+books; names are those of "
        "dataset. Records of joined sets alternate, in proportion to the "
        "sizes of the sets: an epoch holds each record once.",
    )
    on_corrupt_record: str = setting(
        "error",
        "What to do with a damaged training record: stop and name it, or "
        "train without it (skip), note it in the run's directory, and go on.",
        choices=("error", "skip"),
    )
    max_corrupt_records: int = setting(
        100,
        "Records that on_corrupt_record=skip may leave out of a run.",
        at_least=1,
    )

    def check(self) -> None:
        super().check()
        self.data_phases()

    def datasets(self) -> dict[str, tuple[str, ...]]:
        """The files or globs of each named dataset.

        Raises:
            UserError: If one is not of its form, or named twice.
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

        Raises:
            UserError: If the schedule is not of its form, or names a dataset
                that is not there.
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
        form = UserError(
            "data_schedule must be STEP:NAME[+NAME...],... with rising steps "
            "from 0 and names of --dataset",
            received=f"{self.data_schedule!r}, with "
            f"{', '.join(datasets) or 'no dataset'}",
            remedy="Example: 0:wiki,125000:wiki+books",
        )
        if self.input_file:
            raise UserError(
                "data_schedule replaces input_file: only one may be given",
                received=f"{self.data_schedule!r} and {self.input_file!r}",
            )
        phases: list[tuple[int, tuple[str, ...]]] = []
        for part in self.data_schedule.split(","):
            step, _, joined = part.partition(":")
            names = tuple(joined.split("+"))
            if not step.isdecimal() or not set(names) <= set(datasets):
                raise form
            if int(step) <= phases[-1][0] if phases else int(step):
                raise form
            phases.append((int(step), names))
        return tuple(phases)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """The update; defaults are the published ones."""

    optimizer: str = setting("lamb", "Optimizer.", choices=("lamb", "adamw"))
    learning_rate: float = setting(
        0.00176, "Peak learning rate, for a batch of 4096.", at_least=0
    )
    num_warmup_steps: int = setting(
        3125, "Updates of linear warm-up.", at_least=0
    )
    poly_power: float = setting(
        1.0, "Power of the polynomial decay to 0.", at_least=0
    )
    weight_decay_rate: float = setting(
        0.01, "Weight decay, not of LayerNorm and biases.", at_least=0
    )
    beta_1: float = setting(0.9, "Decay of the mean.", at_least=0, below=1)
    beta_2: float = setting(
        0.999, "Decay of the mean square.", at_least=0, below=1
    )
    epsilon: float = setting(
        1e-6, "Added to the root of the mean square.", at_least=1e-20
    )
    clip_norm: float = setting(
        1.0,
        "Largest global norm of the gradients; 0 does not clip.",
        at_least=0,
    )
    clip_scope: str = setting(
        "global",
        "Clip the gradients of the whole batch (global), or, as published, "
        "each replica's before they are averaged (per_replica).",
        choices=("global", "per_replica"),
    )


@dataclasses.dataclass(frozen=True)
class DistributionConfig(Config):
    """Devices and number formats."""

    strategy: str = setting(
        "auto",
        "tf.distribute strategy; auto takes the TPU, the workers of "
        "TF_CONFIG, or all local GPUs, whichever is found first.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
    )
    tpu_name: str = setting(
        "local",
        "TPU to connect to: local on a TPU VM of one host; the servers of the "
        "hosts of a slice, grpc://HOST:8470,...; or a name.",
    )
    tpu_zone: str = setting("", "Zone of a named TPU, e.g. us-central2-b.")
    gcp_project: str = setting("", "Project of a named TPU.")
    num_logical_cpus: int = setting(
        1,
        "Split the CPU into so many devices, to try --strategy=mirrored "
        "where there is no accelerator.",
        at_least=1,
    )
    precision: str = setting(
        "float32",
        "Keras dtype policy of the encoder: float32 or mixed_bfloat16 "
        "(variables, LayerNorm, softmax, logits and update stay float32).",
        choices=("float32", "mixed_bfloat16"),
    )
    remat: bool = setting(
        False,
        "Compute each block a second time in the backward pass instead of "
        "keeping what it computed: less memory, about a third more time; the "
        "gradients are the same.",
    )
    jit_compile: bool = setting(
        False,
        "Compile the step with XLA on GPUs. TPUs always do; on CPUs it is "
        "slower.",
    )
    fuse_on_cpu: bool = setting(
        True,
        "On CPUs, let XLA compile what stands between matrix products; else "
        "TensorFlow computes one operation after the other, which is slower.",
    )
    worker_timeout_s: int = setting(
        600,
        "Seconds after which a worker that does not answer is taken for lost, "
        "and the job ends.",
        at_least=1,
    )
    peak_tflops: float = setting(
        0.0,
        "Peak of one device in 10^12 floating-point operations a second, for "
        "the share of it that is used (MFU), e.g. 197 for TPU v5e in bfloat16; "
        "0 takes that of a known TPU or GPU, and gives no share otherwise.",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class InitializationConfig(Config):
    """The weights that a new run begins with; one that goes on has its own."""

    init_checkpoint: str = setting(
        "",
        "Model to begin with: the directory of a run or one of its "
        "checkpoints, a checkpoint of google-research/albert (prefix, "
        "directory or .tar.gz), or a Hugging Face folder. Training begins at "
        "step 0 all the same. A run that has a checkpoint of its own goes on "
        "from that.",
    )
    init_vocabulary: str = setting(
        "",
        "SentencePiece model of init_checkpoint, where it is not beside it. "
        "Of pieces that the records have, too, the weights are kept.",
    )
    init_from_group0: bool = setting(
        False,
        "Groups that init_checkpoint has not begin as its group 0, as in "
        "google-research/albert, instead of as the group at the same relative "
        "depth.",
    )
    init_optimizer_state: bool = setting(
        False, "Take the moments of the optimizer, too, and not zeros."
    )

    def check(self) -> None:
        for name, value in self.to_dict().items():
            if value and not self.init_checkpoint:
                raise UserError(
                    f"{name} needs --init_checkpoint", received=repr(value)
                )


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config):
    """The run."""

    mode: str = setting(
        "train",
        "train, or eval: evaluate the newest checkpoint once.",
        choices=("train", "eval"),
    )
    output_dir: str = setting(
        "",
        "Directory of the run, local or gs://: checkpoints, logs, resolved "
        "configuration. A run found there is continued.",
    )
    num_train_steps: int = setting(125_000, "Updates.", at_least=1)
    steps_per_loop: int = setting(
        1000, "Updates between two looks at the host.", at_least=1
    )
    save_checkpoints_steps: int = setting(
        5000, "Updates between two checkpoints.", at_least=1
    )
    keep_checkpoint_max: int = setting(
        5, "Newest checkpoints kept.", at_least=1
    )
    keep_every_n_steps: int = setting(
        0,
        "Keep the checkpoints at multiples of this number of updates for "
        "ever; 0 keeps the newest only.",
        at_least=0,
    )
    on_divergence: str = setting(
        "stop",
        "What to do when the loss is no number, or far above what it was: "
        "stop, or go back to the last checkpoint and go on without the data "
        "since (rollback).",
        choices=("stop", "rollback"),
    )
    divergence_loss_increase: float = setting(
        2.0,
        "Nats above the lowest loss of the run so far at which a loop's mean "
        "loss counts as diverged; 0 looks for numbers that are none alone.",
        at_least=0,
    )
    max_rollbacks: int = setting(
        3, "Rollbacks of a run, after which it stops.", at_least=1
    )
    rollback_learning_rate_scale: float = setting(
        1.0,
        "What each rollback multiplies the learning rate by from there on, "
        "e.g. 0.8.",
        at_least=0.01,
        below=1.0001,
    )
    profile_steps: str = setting(
        "",
        "Updates to profile, as FIRST:LAST, e.g. 1000:1020; see them in "
        "TensorBoard's profiler.",
    )
    allow_config_change: bool = setting(
        False,
        "Go on with a run whose settings have changed in what they mean, e.g. "
        "its batch or learning rate; every change is named and logged.",
    )
    dry_run: bool = setting(
        False,
        "Check everything that a run needs, time one update, print what was "
        "found, and train nothing.",
    )
    eval_every_n_steps: int = setting(
        0,
        "Updates between two evaluations; 0 is at the end only.",
        at_least=0,
    )
    sentence_objective: str = setting(
        "sop",
        "Sentence-order prediction, next-sentence prediction (for records "
        "that google-research/albert made with --random_next_sentence), or "
        "none.",
        choices=SENTENCE_OBJECTIVES,
    )
    dropout_schedule: str = setting(
        "",
        "Dropout by step, as STEP:RATE,..., for hidden layers and attention "
        "alike, e.g. 0:0.1,1000000:0.0 removes it after a million updates. "
        "Empty takes the architecture's rates throughout.",
    )
    seed: int = setting(
        12345,
        "Seed of initial weights, data order, dynamic masks and dropout.",
        at_least=0,
        below=2**32,
    )

    def check(self) -> None:
        self.dropout_phases()
        self.profiled_steps()
        if set(self.output_dir) & set("*?[]\\"):
            raise UserError(
                "output_dir must hold none of * ? [ ] \\, which TensorFlow "
                "takes for a pattern when it reads checkpoints",
                received=self.output_dir,
            )

    def profiled_steps(self) -> tuple[int, int] | None:
        """`profile_steps` as (first, last), or None.

        Raises:
            UserError: If it is not of its form.
        """
        if not self.profile_steps:
            return None
        first, _, last = self.profile_steps.partition(":")
        if not (first.isdecimal() and last.isdecimal()) or (
            int(first) >= int(last)
        ):
            raise UserError(
                "profile_steps must be FIRST:LAST, with FIRST below LAST",
                received=repr(self.profile_steps),
                remedy="Example: 1000:1020",
            )
        return int(first), int(last)

    def dropout_phases(self) -> tuple[tuple[int, float], ...]:
        """`dropout_schedule` as (first step, rate) pairs, steps rising.

        Raises:
            UserError: If the schedule is not of its form.
        """
        form = UserError(
            "dropout_schedule must be STEP:RATE,... with rising steps from 0 "
            "and rates from 0 to below 1",
            received=repr(self.dropout_schedule),
            remedy="Example: 0:0.1,1000000:0.0",
        )
        phases: list[tuple[int, float]] = []
        if not self.dropout_schedule:
            return ()
        for part in self.dropout_schedule.split(","):
            step, separator, rate = part.partition(":")
            try:
                phase = (int(step), float(rate))
            except ValueError:
                raise form from None
            if not separator or not 0 <= phase[1] < 1:
                raise form
            if phase[0] <= phases[-1][0] if phases else phase[0] != 0:
                raise form
            phases.append(phase)
        return tuple(phases)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(Config):
    """`python -m albert_tf.run_pretraining`."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=OptimizerConfig
    )
    distribution: DistributionConfig = dataclasses.field(
        default_factory=DistributionConfig
    )
    initialization: InitializationConfig = dataclasses.field(
        default_factory=InitializationConfig
    )
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def check(self) -> None:
        if self.data.max_seq_length > self.model.max_position_embeddings:
            raise UserError(
                "max_seq_length must be at most max_position_embeddings",
                received=f"{self.data.max_seq_length} and "
                f"{self.model.max_position_embeddings}",
            )
        if self.optimizer.num_warmup_steps > self.training.num_train_steps:
            raise UserError(
                "num_warmup_steps must be at most num_train_steps",
                received=f"{self.optimizer.num_warmup_steps} and "
                f"{self.training.num_train_steps}",
            )
        if self.training.eval_every_n_steps and not self.data.eval_input_file:
            raise UserError(
                "eval_every_n_steps needs --eval_input_file",
                received="no held-out records",
            )


# --- after pretraining ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ConvertConfig(Config):
    """`python -m albert_tf.convert_checkpoint`."""

    from_: str = setting(
        "",
        "Model to read: a run, or one of its checkpoints; a checkpoint of "
        "google-research/albert, as prefix, directory or .tar.gz; or a Hugging "
        "Face folder. E.g. albert_base_v2.tar.gz.",
    )
    to: str = setting("", "New directory to write, e.g. build/albert_base_v2.")
    to_format: str = setting(
        "auto",
        "What to write: a run, which can be evaluated, exported and trained on "
        "from; a checkpoint of google-research/albert (published); or a "
        "Hugging Face folder. auto is published for a run, and else a run.",
        choices=("auto", "run", "published", "hugging_face"),
    )
    checkpoint_step: int = setting(
        0,
        "Checkpoint to read where there are several; 0 is the newest.",
        at_least=0,
    )
    licence: str = setting(
        "",
        "Licence of the weights, for the card of a Hugging Face folder, an "
        "identifier of their list, e.g. apache-2.0.",
    )
    with_sentence_head: bool = setting(
        True,
        "Whether a Hugging Face folder holds pooler and sentence head, which "
        "AlbertForPreTraining has, and AlbertForMaskedLM has not.",
    )
    verify: bool = setting(
        False,
        "Read again what was written, and compare: every bit; or, of a Hugging "
        "Face folder, what both models answer to the same text, which needs "
        "the extra interop.",
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    """`python -m albert_tf.export_saved_model`."""

    run_dir: str = setting("", "--output_dir of the run to export.")
    export_dir: str = setting("", "Where to write the SavedModel.")
    checkpoint_step: int = setting(
        0, "Checkpoint to export; 0 is the newest.", at_least=0
    )
    top_k: int = setting(5, "Pieces answered for each mask.", at_least=1)
    text_signatures: bool = setting(
        True, "Also answer text, tokenized in the graph by tensorflow-text."
    )


@dataclasses.dataclass(frozen=True)
class FillMaskConfig(Config):
    """`python -m albert_tf.fill_mask`."""

    saved_model_dir: str = setting("", "SavedModel to load.")
    text: tuple[str, ...] = setting(
        (),
        "A sentence with [MASK] in it; give the flag several times.",
        repeated=True,
    )


@dataclasses.dataclass(frozen=True)
class ServingClientConfig(Config):
    """`python -m albert_tf.serving.client`."""

    server: str = setting(
        "http://localhost:8501",
        "Server to ask: http://HOST:PORT for REST, grpc://HOST:PORT for gRPC.",
    )
    model_name: str = setting("albert", "The server's name for the model.")
    text: tuple[str, ...] = setting(
        (),
        "A sentence with [MASK] in it, or, with text_pair, a first text; give "
        "the flag several times.",
        repeated=True,
    )
    text_pair: str = setting("", "Text that may follow the other.")


@dataclasses.dataclass(frozen=True)
class ReportConfig(Config):
    """`python -m albert_tf.report`."""

    run_dirs: tuple[str, ...] = setting(
        (), "--output_dir of one run or several, comma-separated."
    )
    output_file: tuple[str, ...] = setting(
        (),
        "What to write, by its ending: a picture (.png), or a page (.html) "
        "that needs no network; several with commas, e.g. "
        "build/report.html,build/curves.png.",
    )
    x_axis: str = setting(
        "step",
        "What curves are drawn over: updates (step), positions trained on, "
        "padding included (tokens), or hours of training, the time between "
        "processes and that of steps that were lost left out (hours).",
        choices=("step", "tokens", "hours"),
    )

    def check(self) -> None:
        for path in self.output_file:
            if not path.endswith((".png", ".html")):
                raise UserError(
                    "output_file must end in .png or .html",
                    received=path,
                    remedy="Example: --output_file=build/report.html",
                )


# --- tpu --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CompileCheckConfig(Config):
    """`python -m tpu.compile_check`."""

    run: PretrainingConfig = dataclasses.field(
        default_factory=PretrainingConfig
    )
    topology: str = setting(
        "",
        "Slice, by version and shape, e.g. v5e:16x16 or v4:4x4x8, or by "
        "accelerator type, e.g. v5litepod-256.",
    )
    quick: bool = setting(
        False,
        "Compile with little effort: memory within some per cent, and no "
        "times, in about a fourth of the time.",
    )
    json: bool = setting(
        False, "Print JSON instead of text: an object, or a list for --sweep."
    )
    sweep: bool = setting(
        False,
        "Compare batch sizes, with and without --remat, with and without "
        "dropout: 4 compiles for each batch size.",
    )
    sweep_batch_sizes: tuple[str, ...] = setting(
        ("8", "16", "32"),
        "Examples that a core works through at a time, with commas.",
    )
    output_file: str = setting(
        "", "PNG to draw the sweep to, e.g. build/sweep.png."
    )

    def check(self) -> None:
        if self.output_file and not self.sweep:
            raise UserError(
                "output_file needs --sweep", received=self.output_file
            )
        if self.output_file and not self.output_file.endswith(".png"):
            raise UserError(
                "output_file must end in .png", received=self.output_file
            )
        self.batch_sizes()

    def batch_sizes(self) -> tuple[int, ...]:
        """`sweep_batch_sizes` as numbers.

        Raises:
            UserError: If one is none.
        """
        if not self.sweep_batch_sizes or not all(
            text.isdecimal() and int(text) for text in self.sweep_batch_sizes
        ):
            raise UserError(
                "sweep_batch_sizes must be numbers from 1 up",
                received=",".join(self.sweep_batch_sizes),
                remedy="Example: --sweep_batch_sizes=8,16,32",
            )
        return tuple(map(int, self.sweep_batch_sizes))


@dataclasses.dataclass(frozen=True)
class CompileRecipesConfig(Config):
    """`python -m tpu.compile_recipes`."""

    recipe: tuple[str, ...] = setting(
        (),
        "Recipes of configs/pretrain, with commas, e.g. base_v2_125k; all "
        "that name a slice if it is not given.",
    )
    quick: bool = setting(False, "Memory alone, in a fourth of the time.")
