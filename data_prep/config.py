"""Settings of the commands that prepare data."""

import dataclasses
import re
from typing import Any

from albert_tf.config import SENTENCE_OBJECTIVES, Config, setting
from albert_tf.config.data import MaskingConfig
from albert_tf.config.settings import inherited
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Config):
    """The text that train_tokenizer and build_tfrecords read.

    Commands compare the text by its digest, so its source affects nothing.
    """

    input_file: tuple[str, ...] = setting(
        (),
        "Text: comma-separated files or globs, local or gs://, plain or "
        "compressed by gzip, bzip2, xz or zstd, e.g. corpus/*.txt.gz. In a "
        "local path, ** matches any number of directories. One sentence per "
        "line with a blank line between documents, JSON, CSV or Parquet; see "
        "input_format.",
        affects="nothing",
    )
    input_format: str = setting(
        "auto",
        "text; jsonl: JSON lines or a list of objects, each with one document; "
        "or csv: a header and rows, with tabs, commas, semicolons or | between "
        "cells. auto decides by the name and the first bytes of each file. "
        "Parquet, which needs the extra `data`, is always found by its bytes.",
        choices=("auto", "text", "jsonl", "csv"),
    )
    tfds: str = setting(
        "",
        "Dataset of TensorFlow Datasets to read, alone or in addition to "
        "input_file, e.g. wikipedia/20230601.en. The environment variable "
        "TFDS_DATA_DIR names the directory of prepared datasets.",
        affects="nothing",
    )
    tfds_split: str = setting(
        "train",
        "Split of the dataset to read, e.g. train or train[:10%].",
        affects="nothing",
    )
    text_field: str = setting(
        "text",
        "Name of the JSON field, the column, or the dataset's feature that "
        "holds the text. A list of strings in JSON is joined by spaces.",
    )
    sentence_breaker: str = setting(
        "none",
        "How lines become sentences: none reads each line as one sentence; "
        "sentencex reads each line as a paragraph and splits it into "
        "sentences.",
        choices=("none", "sentencex"),
    )
    language: str = setting(
        "en",
        "Language of the text for sentencex: an ISO 639 code in lower case, of "
        "two letters if the language has one, e.g. de, else of three, e.g. "
        "hsb. sentencex breaks text of a language that it does not know by its "
        "rules for English.",
    )
    on_bad_utf8: str = setting(
        "error",
        "What to do with bytes that are not UTF-8: error stops and names "
        "them, replace puts U+FFFD in their place, skip drops their line or, "
        "in JSON and datasets, their document.",
        choices=("error", "replace", "skip"),
    )
    do_lower_case: bool = setting(True, "Convert the text to lower case.")

    @property
    def reads_labels(self) -> bool:
        """Whether rows are units and their words; see `text.split_labels`."""
        return False

    def check(self) -> None:
        super().check()
        # sentencex breaks text of unknown codes as English.
        if not re.fullmatch("[a-z]{2,3}", self.language):
            raise UserError(
                "language must be an ISO 639 code, two or three lower-case "
                "letters",
                received=repr(self.language),
                remedy="For example, German is de.",
            )


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(CorpusConfig):
    """Settings of `python -m data_prep.train_tokenizer`."""

    model_prefix: str = setting(
        "",
        "Path prefix of the files to write, PREFIX.model, PREFIX.vocab and "
        "PREFIX.json, e.g. build/spm.",
        affects="nothing",
    )
    # PREFIX.json stores the settings of the dataset, so the command compares
    # them, too. A build of records compares only the digest of the text.
    tfds: str = inherited(CorpusConfig, "tfds", affects="result")
    tfds_split: str = inherited(CorpusConfig, "tfds_split", affects="result")
    symbols: str = setting(
        "",
        "Make a vocabulary of single characters: phonemes, proteins, codes. "
        "They are not normalised, have no case, and the space is one of them. "
        "text: those of the text, up to character_coverage; or a file whose "
        "characters, without ends of lines, are taken in order. vocab_size and "
        "the settings of pieces then have no effect.",
        affects="nothing",  # PREFIX.json has the characters
    )
    vocab_size: int = setting(
        30000,
        "Number of pieces in the vocabulary, special pieces included.",
        at_least=8,
    )
    vocabulary_kind: str = setting(
        "published",
        "Where text is normalised: published, in Python around the "
        "SentencePiece model, as in google-research/albert; or "
        "self_contained, in the model, so that every SentencePiece runtime "
        "returns the same ids for raw text.",
        choices=("published", "self_contained"),
    )
    keep_accents: bool = setting(
        False,
        "Keep accents and other combining marks, which google-research/albert "
        "drops. Most languages but English need them. The vocabulary stores "
        "this choice.",
    )
    character_coverage: float = setting(
        0.99995,
        "Fraction of the characters in the text that the vocabulary covers, "
        "e.g. 0.9995 for Chinese or Japanese, which have thousands of rare "
        "characters. SentencePiece demands at least 0.98.",
        at_least=0.98,
        at_most=1,
    )
    byte_fallback: bool = setting(
        False,
        "Encode a character that the vocabulary does not cover as its UTF-8 "
        "bytes instead of <unk>; the bytes use 256 of the pieces.",
    )
    input_sentence_size: int = setting(
        10_000_000,
        "Largest number of sentences to train on. A larger corpus is sampled; "
        "every sentence is equally likely.",
        at_least=1,
    )
    input_characters: int = setting(
        200_000_000,
        "Largest number of characters to train on. Training needs 27 to 32 "
        "bytes of memory for each: a million English sentences have about 125 "
        "million characters and need 3.5 GB.",
        at_least=1,
    )
    overwrite: bool = setting(
        False,
        "Replace a model that was trained with other settings.",
        affects="nothing",
    )

    def check(self) -> None:
        """Checks settings that depend on each other."""
        super().check()
        if self.keep_accents and self.vocabulary_kind == "self_contained":
            raise UserError(
                "--keep_accents needs --vocabulary_kind=published",
                received="self_contained, whose rules replace one character at "
                "a time, and so cannot compose marks with letters",
            )


_PACKING_SETTINGS = ("packing", "max_examples_per_row")


@dataclasses.dataclass(frozen=True)
class RecordsConfig(CorpusConfig, MaskingConfig):
    """Settings of `python -m data_prep.build_tfrecords`."""

    output_dir: str = setting(
        "",
        "Directory to write train/ and, with --holdout_fraction, eval/ to: "
        "shards, metadata.json and the vocabulary, e.g. build/records.",
        affects="nothing",
    )
    spm_model_file: str = setting(
        "",
        "SentencePiece model of the vocabulary, e.g. build/spm.model, or "
        "albert_mini_en, that of the released model.",
        affects="nothing",
    )
    sentence_objective: str = setting(
        "sop",
        "Second segment of an example: sop takes the text that follows, and "
        "swaps the segments in half of the examples; nsp takes text of "
        "another document in half of the examples (BERT); none has no second "
        "segment.",
        choices=SENTENCE_OBJECTIVES,
    )
    masking: str = setting(
        "static",
        "static masks train/ when it is built, as google-research/albert "
        "does; dynamic leaves masking to training, which draws new masks in "
        "each epoch, so that --dupe_factor=1 is enough. eval/ is always "
        "static.",
        choices=("static", "dynamic"),
    )
    deduplicate: bool = setting(
        False,
        "Keep only one of several documents that are equal after "
        "normalisation.",
    )
    short_seq_prob: float = setting(
        0.1,
        "Probability that, in one pass over a document, the examples have a "
        "random target length instead of max_seq_length.",
        at_least=0,
        at_most=1,
    )
    dupe_factor: int = setting(
        10,
        "Number of passes over the corpus, each with different masks.",
        at_least=1,
    )
    holdout_fraction: float = setting(
        0.0,
        "Fraction of the documents to write to eval/ instead of train/, "
        "chosen by a hash of their text, e.g. 0.01.",
        at_least=0,
        below=1,
    )
    num_shards: int = setting(
        16,
        "Number of files in train/. On gs://, each should have 10 MB or more.",
        at_least=1,
    )
    num_eval_shards: int = setting(1, "Number of files in eval/.", at_least=1)
    seed: int = setting(12345, "Seed of pairs and masks.", at_least=0)
    num_workers: int = setting(
        0,
        "Number of processes without --dask_scheduler; 0 is one for each core "
        "that the command may use. Does not affect the records.",
        at_least=0,
        affects="nothing",
    )
    dask_scheduler: str = setting(
        "",
        "Address of a Dask scheduler whose workers build the records, e.g. "
        "tcp://10.0.0.2:8786. All workers must see --output_dir and "
        "--scratch_dir under the same paths. Does not affect the records.",
        affects="nothing",
    )
    scratch_dir: str = setting(
        "",
        "Directory for intermediate files, about a third of the size of the "
        "records: local or, with --dask_scheduler, one that all workers share. "
        "An interrupted build continues from them. Default: in output_dir, or, "
        "if that is gs://, in the system's directory for temporary files.",
        affects="nothing",
    )
    overwrite: bool = setting(
        False,
        "Replace records of other settings or text, also those of an "
        "unfinished build, and records of which a file is missing.",
        affects="nothing",
    )

    def check(self) -> None:
        """Checks settings that depend on each other."""
        super().check()
        if "://" in self.scratch_dir:
            raise UserError(
                "scratch_dir must be a local directory or, with "
                "--dask_scheduler, one that all workers share",
                received=self.scratch_dir,
                remedy="Name one, e.g. --scratch_dir=/tmp/scratch.",
            )
        if self.label_vocab_size == 1 or (self.reads_labels and self.tfds):
            raise UserError(
                "label_vocab_size must be 0 or at least 2, and needs JSON lines"
                " as --input_file",
                received=f"{self.label_vocab_size} and --tfds={self.tfds}",
            )
        scratch = self.scratch_dir or self.output_dir
        if self.dask_scheduler and not (
            scratch.startswith("/") and self.output_dir.startswith(("/", "gs:"))
        ):
            raise UserError(
                "--dask_scheduler needs absolute paths that all workers share",
                received=f"--output_dir={self.output_dir} and "
                f"--scratch_dir={self.scratch_dir}",
                remedy="With records on gs://, set --scratch_dir, too.",
            )

    @property
    def reads_labels(self) -> bool:
        """Whether tokens have labels."""
        return self.label_vocab_size > 0

    def result_settings(self) -> dict[str, Any]:
        """The settings that decide the examples; packing does not.

        Older records have no `label_vocab_size`.
        """
        values = super().result_settings()
        if not self.reads_labels:
            del values["label_vocab_size"]
        return {
            name: value
            for name, value in values.items()
            if name not in _PACKING_SETTINGS
        }

    def packing_settings(self) -> dict[str, Any]:
        """The settings that pack examples into rows."""
        packs = self.packing != "none"
        size = self.max_examples_per_row if packs else 1
        return dict(zip(_PACKING_SETTINGS, (self.packing, size), strict=True))


@dataclasses.dataclass(frozen=True)
class InspectConfig(Config):
    """Settings of `python -m data_prep.inspect_records`."""

    input_file: tuple[str, ...] = setting(
        (),
        "Records: comma-separated directories, files or globs, local or "
        "gs://, e.g. build/records or build/records/train/*.tfrecord.",
    )
    num_examples: int = setting(
        2, "Examples to print of the first shard of a directory.", at_least=0
    )
