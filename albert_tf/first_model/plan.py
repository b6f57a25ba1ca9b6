"""What a first model is made from: a function of settings and size of text."""

import glob
import math
import os
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from albert_tf.cluster import devices
from albert_tf.config import FirstModelConfig
from albert_tf.config.model import override_types
from albert_tf.errors import UserError
from albert_tf.io import files, shipped
from albert_tf.records.tokenization import Tokenizer

# Below this size, a vocabulary and a model from random weights learn nothing.
SMALLEST_TEXT = 200_000
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
HELD_OUT_BYTES = 500_000
# ISO 639 codes of languages whose script has thousands of characters.
MANY_CHARACTERS = ("zh", "ja", "yue")
# From this time on, a model learns its text by heart, unless it has dropout
# after the first stage: 3 MB in an hour on two cores, not in ten minutes.
MANY_MINUTES_PER_MB, DROPOUT = 7, 0.1


class Recipe(NamedTuple):
    """What is trained on a kind of device."""

    architecture: str  # the name of a file of configs/models
    num_layers: int  # they share their weights
    lengths: tuple[int, ...]  # tokens of the short and the longer examples
    batch_tokens: int  # in a step
    max_vocab_size: int
    flags: str  # of the training


# Chosen by the measurements in docs/log.md. Those of GPU and TPU follow the
# paper's architecture, and have not been tried.
_SMALL = "--optimizer=adamw --beta_2=0.98 --learning_rate=0.001"
_CONTINUED = "--optimizer=adamw --beta_2=0.98 --learning_rate=0.0005"
_LARGE = (
    "--optimizer=muon --beta_2=0.98 --learning_rate=0.0005 "
    "--precision=mixed_bfloat16"
)
RECIPES = {
    "cpu": Recipe("albert_mini", 1, (16, 64), 1024, 4000, _SMALL),
    "gpu": Recipe("albert_base_v2", 12, (64, 128), 32_768, 30_000, _LARGE),
    "tpu": Recipe("albert_base_v2", 12, (64, 128), 131_072, 30_000, _LARGE),
}


class Plan(NamedTuple):
    """Everything that is decided before the first command."""

    facts: Sequence[str]  # what was found and decided, one line for each
    vocabulary_flags: Sequence[str]  # to train it; none if it is a model's
    records_flags: Sequence[str]
    training_flags: Sequence[str]  # of all stages
    holdout_fraction: float  # of the documents
    lengths: Sequence[int]  # tokens of the examples of each stage
    batch_tokens: int  # in a step
    dropout: float  # after the first stage


def find_patterns(config: FirstModelConfig) -> list[str]:
    """The globs of the text; a directory stands for all files in it."""
    return [
        os.path.join(glob.escape(path), "**") if os.path.isdir(path) else path
        for path in config.input_file
    ]


def measure_text(config: FirstModelConfig) -> int:
    """The bytes of the text; compressed files count threefold.

    Raises:
        UserError: If there is no text, or too little.
    """
    paths = files.find_all("input_file", find_patterns(config), "*")
    num_bytes = sum(
        files.count_bytes(path) * (3 if path.endswith(COMPRESSED) else 1)
        for path in paths
    )
    if num_bytes < SMALLEST_TEXT and not config.init_checkpoint:
        raise UserError(
            f"input_file must hold at least {SMALLEST_TEXT:,} bytes of text",
            received=f"{num_bytes:,} bytes in {len(paths)} files",
            remedy="Give more text, or continue a trained model: "
            "--init_checkpoint=albert_mini_en.",
        )
    return num_bytes


def find_device() -> str:
    """The kind of device that the training will use, "cpu", "gpu" or "tpu"."""
    if devices.find_chips():
        return "tpu"
    return "gpu" if any(pathlib.Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def make_plan(config: FirstModelConfig, num_bytes: int) -> Plan:
    """Chooses vocabulary, records, architecture and optimizer.

    Args:
        num_bytes: Of the text; see `measure_text`.

    Raises:
        UserError: For an initial model that cannot be used.
    """
    device = find_device()
    recipe = RECIPES[device]
    corpus_flags = [
        # Patterns, since names may hold commas, and thousands are too long.
        f"--input_file={','.join(find_patterns(config))}",
        f"--language={config.language}",
        "--sentence_breaker=sentencex",
        *shlex.split(config.text_flags),
    ]
    vocabulary_flags: list[str] = []
    if config.init_checkpoint:
        initial = shipped.find(config.init_checkpoint, shipped.MODEL)
        model, objective, lower_case = _read_initial(initial)
        architecture, optimizer = "albert_mini", _CONTINUED
        lengths = recipe.lengths[1:]
        vocabulary = about_vocabulary = f"{initial}/spiece.model"
        keeps_accents = Tokenizer(vocabulary).keep_accents
    else:
        # From 3 to 300 MB, ten times as many pieces.
        suited = 4000 * math.sqrt(num_bytes / 3e6)
        size = int(min(recipe.max_vocab_size, max(1000, suited // 500 * 500)))
        objective, lower_case = "none", config.do_lower_case
        keeps_accents = True
        vocabulary = f"{config.output_dir}/vocabulary/spm.model"
        vocabulary_flags = [
            *corpus_flags,
            f"--do_lower_case={lower_case}",
            "--keep_accents",
            f"--model_prefix={vocabulary.removesuffix('.model')}",
        ]
        if config.language in MANY_CHARACTERS:
            size = max(size, 8000)
            vocabulary_flags.append("--character_coverage=0.9995")
            vocabulary_flags.append("--byte_fallback")
        vocabulary_flags.append(f"--vocab_size={size}")
        about_vocabulary = f"{size:,} pieces, trained on the text"
        architecture, optimizer = recipe.architecture, recipe.flags
        lengths = recipe.lengths
        model = {"num_hidden_layers": recipe.num_layers, "vocab_size": size}
    records_flags = [
        *corpus_flags,
        f"--do_lower_case={lower_case}",
        f"--spm_model_file={vocabulary}",
        f"--sentence_objective={objective}",
        "--ngram=1",
        "--short_seq_prob=0",
        "--masking=dynamic",
        "--dupe_factor=1",
        "--num_shards=4",
    ]
    training_flags = [
        f"--albert_config_file={architecture}",
        f"--model={','.join(f'{n}={v}' for n, v in model.items())}",
        f"--sentence_objective={objective}",
        *optimizer.split(),
        "--ngram=1",
        "--steps_per_loop=20",
    ]
    is_long = config.minutes > MANY_MINUTES_PER_MB * num_bytes / 1e6
    dropout = DROPOUT if is_long else 0.0
    case = "read as small letters" if lower_case else "kept"
    facts = [
        f"text: {num_bytes:,} bytes; capitals are {case}; accents are "
        f"{'kept' if keeps_accents else 'dropped, as by the vocabulary'}",
        f"vocabulary: {about_vocabulary}",
        f"examples of {', then '.join(map(str, lengths))} tokens; "
        f"{recipe.batch_tokens:,} tokens a step; sentence objective "
        f"{objective}; dropout {dropout:g}",
        f"device: {device}",
        f"training: {' '.join(training_flags)}",
    ]
    return Plan(
        facts,
        vocabulary_flags,
        records_flags,
        training_flags,
        min(0.05, HELD_OUT_BYTES / num_bytes),
        lengths,
        recipe.batch_tokens,
        dropout,
    )


def _read_initial(path: str) -> tuple[dict[str, Any], str, bool]:
    """Architecture, sentence objective and case of a model."""
    settings = files.load_json_if_any(os.path.join(path, "config.json"))
    if not settings or not os.path.exists(os.path.join(path, "spiece.model")):
        raise UserError(
            "init_checkpoint must be a run directory or a Hugging Face folder, "
            "with config.json and spiece.model",
            received=path,
            remedy="python -m albert_tf.convert_checkpoint makes a run of "
            "other formats.",
        )
    names = override_types()
    model = settings.get("model", settings)
    model = {name: value for name, value in model.items() if name in names}
    if model.get("hidden_act") == "gelu_new":  # Hugging Face's name
        model["hidden_act"] = "gelu"
    training = settings.get("training", settings)
    lower_case = True
    for name in ("tokenizer_config.json", "records_metadata.json"):
        found = files.load_json_if_any(os.path.join(path, name)) or {}
        lower_case = found.get("do_lower_case", lower_case)
    return model, training.get("sentence_objective", "sop"), lower_case
