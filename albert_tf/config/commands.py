"""Settings of conversion, export, prediction, reports and sweeps."""

import contextlib
import dataclasses
import math

from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class ConvertConfig(Config):
    """Settings of `python -m albert_tf.convert_checkpoint`."""

    from_: str = setting(
        "",
        "Model to read: a run directory or one of its checkpoints; a "
        "checkpoint of google-research/albert, as prefix or directory; a "
        "Hugging Face folder; or albert_mini_en, the released model. E.g. "
        "albert_base.",
    )
    to: str = setting("", "New directory to write, e.g. build/albert_base_v2.")
    to_format: str = setting(
        "auto",
        "Format to write. run: a run directory that can be evaluated, exported "
        "and used as --init_checkpoint. hugging_face: a Hugging Face folder. "
        "auto: hugging_face if --from is a run, and run otherwise.",
        choices=("auto", "run", "hugging_face"),
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    """Settings of `python -m albert_tf.export_saved_model`."""

    run_dir: str = setting(
        "",
        "Run directory to export, the --output_dir of training, local or "
        "gs://, e.g. runs/base.",
    )
    export_dir: str = setting(
        "",
        "New directory to write the SavedModel to, local or gs://, e.g. "
        "build/demo/saved_model.",
    )
    format: str = setting(
        "saved_model",
        "saved_model: a SavedModel, for servers and Python. litert: a model of "
        "LiteRT (TensorFlow Lite), for phones and small devices.",
        choices=("saved_model", "litert"),
    )
    quantize: str = setting(
        "dynamic_int8",
        "For --format=litert: numbers of the weights. none: float32. "
        "dynamic_int8: int8 weights, and activations that are rounded while "
        "the model runs.",
        choices=("none", "dynamic_int8"),
    )
    text_file: str = setting(
        "",
        "For --format=litert: real text, on which the model is verified, with "
        "one text in each of the first hundred lines, local or gs://, e.g. "
        "held_out.txt.",
    )
    checkpoint_step: int = setting(
        0,
        "Step of the checkpoint to export, in checkpoints/ or best/ of the "
        "run, e.g. 900 for the best checkpoint best/step-00000900; 0 exports "
        "the newest.",
        at_least=0,
    )
    max_seq_length: int = setting(
        0,
        "Largest number of tokens of a sequence in the signatures that take "
        "text. 0: --max_seq_length of the run.",
        at_least=0,
    )
    null_threshold: str = setting(
        "",
        "For question answering: null odds above which the answer is empty, "
        "e.g. -1.5. Empty: the threshold of the run. A model of Hugging Face "
        "has none, so that the threshold of the run is 0, unless albert_tf has "
        "written it.",
    )
    top_k: int = setting(
        5, "Number of predictions to return for each mask.", at_least=1
    )
    text_signatures: bool = setting(
        True,
        "Also export signatures that take text, tokenized in the graph by "
        "tensorflow-text.",
    )
    precision: str = setting(
        "",
        "Number format of the encoder of a SavedModel for CPUs, which has "
        "constant weights. Empty: the precision and the graph of training.",
        choices=("", "float32", "mixed_bfloat16"),
    )

    def check(self) -> None:
        if self.format == "litert" and not self.text_file:
            raise UserError(
                "text_file must name real text for --format=litert, to verify "
                "the model on it",
                received="none",
                remedy="Give some hundred lines like the texts to come, e.g. "
                "--text_file=my/held_out.txt.",
            )
        with contextlib.suppress(ValueError):
            if math.isfinite(float(self.null_threshold or 0)):
                return
        raise UserError(
            "null_threshold must be a finite number",
            received=self.null_threshold,
        )


@dataclasses.dataclass(frozen=True)
class TextsConfig(Config):
    """The texts to ask a model about."""

    text: tuple[str, ...] = setting(
        (),
        "For a pretrained model, a sentence with at least one [MASK], or the "
        "first text of a pair. For a fine-tuned model, the text to classify, "
        "or the text that a question is about. Give the flag once per text, "
        "e.g. --text='Paris is the [MASK] of France.'.",
        repeated=True,
    )
    text_pair: tuple[str, ...] = setting(
        (),
        "Second text of a pair. For a pretrained model, the command then "
        "prints the probability that text_pair follows text, e.g. "
        "--text_pair='It was dark inside.'. Give the flag once for all texts, "
        "or once per text, in the same order.",
        repeated=True,
    )
    question: tuple[str, ...] = setting(
        (),
        "Question about the text, for question answering and multiple choice. "
        "Give the flag once per question, e.g. --question='Who wrote it?'. The "
        "model answers every question for every text.",
        repeated=True,
    )
    choice: tuple[str, ...] = setting(
        (),
        "Possible answer, for multiple choice. Give the flag once per choice, "
        "as many times as a question of the training data has choices, e.g. "
        "--choice='Jane Austen' --choice='Mary Shelley'.",
        repeated=True,
    )

    def check(self) -> None:
        super().check()
        if len(self.text_pair) not in (0, 1, len(self.text)):
            raise UserError(
                "text_pair must be given once, or once per text",
                received=f"{len(self.text_pair)} for {len(self.text)} texts",
            )

    def second_texts(self) -> tuple[str, ...]:
        """The second text of each pair; empty without `text_pair`."""
        if len(self.text_pair) == 1:
            return self.text_pair * len(self.text)
        return self.text_pair


@dataclasses.dataclass(frozen=True)
class PredictConfig(TextsConfig):
    """Settings of `python -m albert_tf.predict`."""

    saved_model_dir: str = setting(
        "",
        "Directory of the SavedModel to load, e.g. export/sst2.",
    )
    input_file: str = setting(
        "",
        "File of texts, local or gs://, in place of --text: a text in each "
        "line (.txt), or rows (.jsonl, .csv, .tsv, .parquet) with columns that "
        "have the names of the flags, e.g. text and text_pair.",
    )
    output_file: str = setting(
        "",
        "File of JSON lines to write or replace: each row of --input_file with "
        "its answer, e.g. answers.jsonl. Empty prints them.",
    )

    def check(self) -> None:
        super().check()
        if self.input_file and (self.text or self.text_pair):
            raise UserError(
                "input_file must be given without text and text_pair",
                received="both",
            )
        if self.output_file and not self.input_file:
            raise UserError(
                "output_file needs input_file", received=self.output_file
            )


@dataclasses.dataclass(frozen=True)
class ScoreConfig(Config):
    """Settings of `python -m albert_tf.score`."""

    model: str = setting(
        "",
        "Pretrained model: a run directory or one of its checkpoints, a "
        "Hugging Face folder, a checkpoint of google-research/albert, or the "
        "name of a released model, e.g. albert_mini_en.",
    )
    input_file: str = setting(
        "",
        "UTF-8 file, local or gs://, with a text in each line, e.g. lines.txt.",
    )
    output_file: str = setting(
        "",
        "File of JSON lines to write or replace, one for each line of "
        "--input_file, e.g. scores.jsonl. Empty prints them.",
    )
    plain: bool = setting(
        False,
        "Mask each token alone, not together with the rest of its word.",
    )


@dataclasses.dataclass(frozen=True)
class ReportConfig(Config):
    """Settings of `python -m albert_tf.report`."""

    run_dirs: tuple[str, ...] = setting(
        (),
        "Run directories to draw, comma-separated, e.g. "
        "build/run,build/other_run.",
    )
    output_file: str = setting(
        "", "Picture to write or replace, as PNG, e.g. build/curves.png."
    )
    metrics: tuple[str, ...] = setting(
        (),
        "Metrics to draw, comma-separated, e.g. "
        "masked_lm_loss,masked_lm_accuracy; empty: all.",
    )


@dataclasses.dataclass(frozen=True)
class SweepConfig(Config):
    """Settings of `python -m albert_tf.sweep`."""

    output_dir: str = setting(
        "",
        "Local directory of the sweep, with a run directory for each run, e.g. "
        "build/table3.",
    )
    records_dir: str = setting(
        "",
        "Replaces {records_dir} in base_flags and variant, e.g. "
        "gs://bucket/records.",
    )
    base_flags: tuple[str, ...] = setting(
        (),
        "Flags of run_pretraining for all runs, separated by spaces. The flag "
        "may be given several times, e.g. --base_flags=--flagfile=base_v1_125k "
        "--base_flags='--num_train_steps=1000 --eval_batch_size=128'.",
        repeated=True,
    )
    variant: tuple[str, ...] = setting(
        (),
        "A variant to train, as NAME: FLAGS, with flags of run_pretraining "
        "that override those of all runs, e.g. "
        "--variant='narrow: --model=embedding_size=64'. Give the flag once per "
        "variant.",
        repeated=True,
    )
    seeds: tuple[str, ...] = setting(
        (),
        "Seeds, comma-separated, e.g. 1,2,3: each variant is trained once with "
        "each seed. Empty: once, with the seed of its flags.",
    )
    metrics: tuple[str, ...] = setting(
        ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_accuracy"),
        "Columns of the table, comma-separated: metrics of the evaluation at "
        "the end of training, training_seconds or training_cpu_seconds.",
    )


@dataclasses.dataclass(frozen=True)
class FirstModelConfig(Config):
    """Settings of `python -m albert_tf.first_model`."""

    input_file: tuple[str, ...] = setting(
        (),
        "Your text: comma-separated files, globs, or directories with all "
        "files in them; plain, compressed or JSON lines, e.g. my/*.txt.",
    )
    language: str = setting(
        "en",
        "Language of the text, an ISO 639 code, e.g. de. It decides how lines "
        "are split into sentences; zh and ja get a larger vocabulary.",
    )
    do_lower_case: bool = setting(True, "Convert the text to lower case.")
    symbols: str = setting(
        "",
        "Text of phonemes, proteins or codes: a vocabulary of its characters, "
        "as by --symbols of data_prep.train_tokenizer, e.g. text. It has no "
        "effect with --init_checkpoint.",
    )
    text_flags: str = setting(
        "",
        "Further flags of python -m data_prep.inspect_text, for all commands "
        "that read the text, e.g. "
        "'--text_field=body --on_bad_utf8=replace'.",
    )
    output_dir: str = setting(
        "",
        "Directory of the model and of everything it is made from, e.g. "
        "my_albert. If it holds an interrupted first model, this one goes on.",
        affects="nothing",
    )
    minutes: float = setting(
        10.0,
        "Time for everything together, in minutes. More time gives a larger or "
        "better model; a complete one goes on from its last constant rate.",
        at_least=1,
    )
    init_checkpoint: str = setting(
        "",
        "Model whose training continues on your text, with its vocabulary: a "
        "run directory or a Hugging Face folder, e.g. models/albert_mini_en. "
        "Empty: a new model.",
    )
    dry_run: bool = setting(
        False, "Print what would be done, and exit.", affects="nothing"
    )
