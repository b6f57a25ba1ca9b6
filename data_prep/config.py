"""Settings of the commands that prepare data."""

import dataclasses

from albert_tf.config import SENTENCE_OBJECTIVES, Config, setting
from albert_tf.config.data import MaskingConfig
from albert_tf.config.settings import inherited


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Config):
    """What both commands of data preparation read.

    The source of the text affects nothing: what counts is a digest of the
    text.
    """

    input_file: tuple[str, ...] = setting(
        (),
        "Text: comma-separated files or globs, local or gs://, plain, .gz, "
        ".bz2 or .zst. One sentence per line, a blank line between "
        "documents, e.g. corpus/*.txt.gz; or JSON lines, see input_format.",
        affects="nothing",
    )
    input_format: str = setting(
        "auto",
        "text, or JSON lines (jsonl) of a document each; auto takes .jsonl, "
        ".ndjson and .json for JSON lines.",
        choices=("auto", "text", "jsonl"),
        affects="result",
    )
    tfds: str = setting(
        "",
        "A dataset of TensorFlow Datasets, read beside or instead of "
        "input_file, e.g. wikipedia/20230601.en.",
        affects="nothing",
    )
    tfds_split: str = setting(
        "train", "What of it, e.g. train or train[:10%].", affects="nothing"
    )
    tfds_data_dir: str = setting(
        "",
        "Where datasets are; default: that of TensorFlow Datasets.",
        affects="nothing",
    )
    text_field: str = setting(
        "text",
        "Field of JSON lines, or feature of a dataset, with the text.",
        affects="result",
    )
    sentence_breaker: str = setting(
        "none",
        "How lines become sentences: a line is one (none), or a line is a "
        "paragraph and is broken up (sentencex).",
        choices=("none", "sentencex"),
        affects="result",
    )
    language: str = setting(
        "en",
        "Language of the text for sentencex, an ISO 639 code, e.g. de.",
        affects="result",
    )
    on_bad_utf8: str = setting(
        "error",
        "What to do with bytes that are not UTF-8: stop and name them, "
        "replace them by U+FFFD, or skip their line.",
        choices=("error", "replace", "skip"),
        affects="result",
    )
    do_lower_case: bool = setting(
        True, "Lower-case the text.", affects="result"
    )


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(CorpusConfig):
    """`python -m data_prep.train_tokenizer`."""

    model_prefix: str = setting(
        "",
        "Where to write PREFIX.model, PREFIX.vocab and PREFIX.json, e.g. "
        "build/spm.",
        affects="nothing",
    )
    # Stored with the vocabulary and compared by name, unlike in records, where
    # the digest of the text stands for its source.
    tfds: str = inherited(CorpusConfig, "tfds", affects="result")
    tfds_split: str = inherited(CorpusConfig, "tfds_split", affects="result")
    tfds_data_dir: str = inherited(
        CorpusConfig, "tfds_data_dir", affects="result"
    )
    vocab_size: int = setting(
        30000,
        "Pieces, special pieces included.",
        at_least=8,
        affects="result",
    )
    vocabulary_kind: str = setting(
        "published",
        "Who normalises text: code around the model, as google-research/albert "
        "(published), or the model (self_contained), which then gives the same "
        "ids of raw text in any SentencePiece runtime.",
        choices=("published", "self_contained"),
        affects="result",
    )
    character_coverage: float = setting(
        0.99995,
        "Share of the characters to cover, e.g. 0.9995 for Chinese or "
        "Japanese, which have thousands of rare ones.",
        at_least=0.5,
        below=1.0001,
        affects="result",
    )
    byte_fallback: bool = setting(
        False,
        "Spell characters that are not covered as UTF-8 bytes, instead of "
        "<unk>; takes 256 of the pieces.",
        affects="result",
    )
    input_sentence_size: int = setting(
        10_000_000,
        "Sentences drawn from the corpus at the most, each as likely.",
        at_least=1,
        affects="result",
    )
    input_characters: int = setting(
        200_000_000,
        "Characters of these sentences at the most. Training needs 27 to 32 "
        "bytes of memory for each: a million English sentences have some 125 "
        "million characters, and need 3.5 GB.",
        at_least=1,
        below=2**31,
        affects="result",
    )
    holdout_fraction: float = setting(
        0.01,
        "Share of the sentences, by a hash of their text, not trained on but "
        "reported on; 0 is no report.",
        at_least=0,
        below=1,
        affects="result",
    )
    overwrite: bool = setting(
        False,
        "Replace a model made with other settings.",
        affects="nothing",
    )


@dataclasses.dataclass(frozen=True)
class RecordsConfig(CorpusConfig, MaskingConfig):
    """`python -m data_prep.build_tfrecords`."""

    output_dir: str = setting(
        "",
        "Where to write train/ and, with --holdout_fraction, eval/: shards, "
        "metadata.json and the vocabulary, e.g. build/records.",
        affects="nothing",
    )
    spm_model_file: str = setting(
        "",
        "SentencePiece model of the vocabulary, e.g. build/spm.model.",
        affects="nothing",
    )
    sentence_objective: str = setting(
        "sop",
        "Second segment: the text that follows, half of the time swapped with "
        "the first (sop); half of the time that of another document (nsp, "
        "BERT's); or no second segment (none).",
        choices=SENTENCE_OBJECTIVES,
        affects="result",
    )
    masking: str = setting(
        "static",
        "Mask train/ when it is built (static, as published), or leave it to "
        "training, which masks each epoch anew (dynamic): --dupe_factor=1 is "
        "then enough. eval/ is always static.",
        choices=("static", "dynamic"),
        affects="result",
    )
    deduplicate: bool = setting(
        False,
        "Keep one of several documents that are equal after normalisation.",
        affects="result",
    )
    short_seq_prob: float = setting(
        0.1,
        "Share of the documents' passes cut to a random shorter length.",
        at_least=0,
        below=1.0001,
        affects="result",
    )
    dupe_factor: int = setting(
        10,
        "Passes over the corpus, each masked anew.",
        at_least=1,
        affects="result",
    )
    holdout_fraction: float = setting(
        0.0,
        "Share of the documents, by a hash of their text, kept for evaluation.",
        at_least=0,
        below=1,
        affects="result",
    )
    num_shards: int = setting(
        16, "Files of train/.", at_least=1, affects="result"
    )
    num_eval_shards: int = setting(
        1, "Files of eval/.", at_least=1, affects="result"
    )
    seed: int = setting(
        12345, "Seed of pairing and masking.", at_least=0, affects="result"
    )
    num_workers: int = setting(
        0,
        "Processes; 0 is one a core. Has no influence on the records.",
        at_least=0,
        affects="nothing",
    )
    runner: str = setting(
        "local",
        "Who builds: the processes of this machine (local), or a runner of "
        "Apache Beam, e.g. DirectRunner, DataflowRunner, FlinkRunner, "
        "SparkRunner. Has no influence on the records.",
        affects="nothing",
    )
    beam_option: tuple[str, ...] = setting(
        (),
        "An option of the Beam runner, NAME=VALUE; give the flag several "
        "times, e.g. --beam_option=region=us-central1.",
        repeated=True,
        affects="nothing",
    )
    scratch_dir: str = setting(
        "",
        "Local directory for what is not shuffled yet, about a third of the "
        "size of the records; an interrupted build goes on from it. Default: "
        "in output_dir, or, if that is gs://, in the system's place for "
        "temporary files.",
        affects="nothing",
    )
    overwrite: bool = setting(
        False,
        "Replace records made with other settings.",
        affects="nothing",
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
