"""What a first model is made from: a function of settings, text and speed."""

import glob
import math
import os
import pathlib
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf.cluster import devices
from albert_tf.config import FirstModelConfig, ModelConfig
from albert_tf.config.model import override_types
from albert_tf.errors import UserError
from albert_tf.io import cpu, files, shipped
from albert_tf.records.tokenization import Tokenizer

# Less English text than this is for continuing the released model.
SUITS_CONTINUED = 20_000_000
HELD_OUT_CHARACTERS, HELD_OUT_DOCUMENTS = 500_000, 5
# ISO 639 codes of languages whose script has thousands of characters.
MANY_CHARACTERS = ("zh", "ja", "yue")
CHARACTERS_PER_TOKEN = 3.8  # of English, with 4,000 pieces
# A model that reads its text more often than this learns it by heart, unless
# it has dropout after the first stage.
MANY_PASSES, DROPOUT = 55, 0.1

# FLOP/s of a training, as a multiple of those of NumPy's products in float32
# (0.8 and 1.4 on two machines; 1.1 to 1.7 times as many in bfloat16, by AMX),
# and of the peak of an accelerator (a guess).
OF_NUMPY, OF_PEAK = {"float32": 1.0, "mixed_bfloat16": 1.5}, 0.3
_UNKNOWN_PEAK = 65e12  # of a GPU that `devices` does not know (a guess)
_DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")

_ADAMW = "--optimizer=adamw --beta_2=0.98 --learning_rate="
_MUON = "--optimizer=muon --beta_2=0.98 --learning_rate="


class Shape(NamedTuple):
    """A model, and how it is trained."""

    flop: float  # of a training, from which on this shape is chosen
    architecture: str  # the name of a file of configs/models
    model: str  # values that replace those of the file
    lengths: tuple[int, ...]  # tokens of the examples, stage by stage
    batch_tokens: int  # in a step
    vocab_size: int  # the largest
    objective: str  # about sentences, of examples of at least 64 tokens
    optimizer: str  # flags


# docs/first_model.md says which of them have been measured.
_WIDER = "hidden_size=384,intermediate_size=1536,num_attention_heads=6"
# fmt: off
SHAPES = (
    Shape(
        0, "albert_mini", "num_hidden_layers=1",
        (16, 64), 1024, 4000, "none", f"{_ADAMW}0.001"),
    Shape(
        5e14, "albert_mini", "num_hidden_layers=2,inner_group_num=2",
        (16, 64, 128), 2048, 8000, "sop", f"{_MUON}0.001"),
    Shape(
        5e15, "albert_mini", f"num_hidden_layers=3,inner_group_num=4,{_WIDER}",
        (64, 128, 512), 8192, 8000, "sop", f"{_MUON}0.001"),
    Shape(
        8e16, "albert_base_v2", "num_hidden_layers=12",
        (64, 128, 512), 32_768, 30_000, "sop", f"{_MUON}0.0005"),
)
# fmt: on
_CONTINUED = f"{_ADAMW}0.0005"


class Plan(NamedTuple):
    """Everything that is decided before the first command."""

    facts: Sequence[str]  # what was found and decided, one line for each
    vocabulary_flags: Sequence[str]  # to train it; none if it is a model's
    records_flags: Sequence[str]
    training_flags: Sequence[str]  # of all stages
    lengths: Sequence[int]  # tokens of the examples of each stage
    batch_tokens: int  # in a step
    objective: str  # about sentences, of examples of at least 64 tokens
    dropout: float  # after the first stage

    def shape_flags(self, length: int) -> list[str]:
        """Flags of records of a length, and of the training on them."""
        objective = self.objective if length >= 64 else "none"
        return [
            f"--sentence_objective={objective}",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={math.ceil(0.15 * length)}",
        ]


def corpus_flags(config: FirstModelConfig) -> list[str]:
    """Flags of the commands that read text; a directory is all its files."""
    patterns = [
        os.path.join(glob.escape(path), "**") if os.path.isdir(path) else path
        for path in config.input_file
    ]
    return [
        # Patterns, since names may hold commas, and thousands are too long.
        f"--input_file={','.join(patterns)}",
        f"--language={config.language}",
        f"--sentence_breaker={'none' if config.symbols else 'sentencex'}",
        *shlex.split(config.text_flags),
    ]


class Device(NamedTuple):
    """What a first model is trained on."""

    name: str
    flop_rate: float  # in FLOP/s, about
    precision: str = "float32"


def find_device() -> Device:
    """What a training here uses, and how fast that is."""
    bfloat16 = "mixed_bfloat16"
    if chips := devices.find_chips():
        chip = devices.chip_of_this_machine() or devices.TPU_CHIPS["v2"]
        peak = chip.peak_flops * chip.cores * len(chips)
        return Device(f"{len(chips)} TPU chips", OF_PEAK * peak, bfloat16)
    if gpus := devices.find_gpus():
        name = "unknown model"
        for path in _DRIVER.glob("*/information"):
            found = re.search(r"Model:\s*(.*)", path.read_text())
            name = found[1] if found else name
        card = devices.find_card(name)
        peak = card.peak if card else _UNKNOWN_PEAK
        is_older = card and "bfloat16" not in card.peak_flops
        return Device(
            f"{len(gpus)} GPUs ({name})",
            OF_PEAK * peak * len(gpus),
            "float32" if is_older else bfloat16,
        )
    precision = bfloat16 if cpu.has_any("amx_bf16") else "float32"
    rate = OF_NUMPY[precision] * _measure_numpy()
    return Device(f"{cpu.count_cores()} CPU cores", rate, precision)


def _measure_numpy() -> float:
    """FLOP/s of NumPy's matrix products, in a second."""
    matrix = np.ones([1024, 1024], np.float32)
    number, began = 0, time.monotonic()
    while number < 3 or time.monotonic() - began < 1:
        matrix @ matrix
        number += 1
    return 2 * number * 1024**3 / (time.monotonic() - began)


def make_plan(
    config: FirstModelConfig,
    text: Mapping[str, Any],
    device: Device,
) -> Plan:
    """Chooses vocabulary, records, architecture and optimizer.

    Args:
        text: What `data_prep.inspect_text` prints.

    Raises:
        UserError: For an initial model that cannot be used.
    """
    # Two thirds of the time are for the training.
    flop = device.flop_rate * 40 * config.minutes
    shape = [shape for shape in SHAPES if shape.flop <= flop][-1]
    from_text = corpus_flags(config)
    vocabulary_flags: list[str] = []
    lengths, objective = shape.lengths, shape.objective
    if config.init_checkpoint:
        initial = shipped.find(config.init_checkpoint, shipped.MODEL)
        model, objective, lower_case = _read_initial(initial)
        vocabulary = about_vocabulary = f"{initial}/spiece.model"
        keeps_accents = Tokenizer(vocabulary).keep_accents
        architecture, optimizer = "albert_mini", _CONTINUED
        longest = model["max_position_embeddings"]
        lengths = tuple(n for n in lengths[1:] if n <= longest)
        values = ",".join(f"{name}={value}" for name, value in model.items())
    else:
        # From 3 to 300 MB, ten times as many pieces.
        suited = 4000 * math.sqrt(text["characters"] / 3e6)
        suited = 500 * max(2, round(suited / 500))
        size = min(shape.vocab_size, suited)
        vocabulary = f"{config.output_dir}/vocabulary/spm.model"
        lower_case, keeps_accents = config.do_lower_case, True
        vocabulary_flags = [
            *from_text,
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
        architecture, optimizer = shape.architecture, shape.optimizer
        values = f"{shape.model},vocab_size={size}"
        if config.symbols:
            vocabulary_flags.append(f"--symbols={config.symbols}")
            about_vocabulary = f"symbols, --symbols={config.symbols}"
            # Their number is known when the vocabulary is made.
            values, lower_case = shape.model, False
            # A word has several symbols.
            lengths, objective = lengths[1:], "none"
    holdout = max(
        min(0.05, HELD_OUT_CHARACTERS / text["characters"]),
        min(0.5, HELD_OUT_DOCUMENTS / text["documents"]),
    )
    records_flags = [
        *from_text,
        f"--do_lower_case={lower_case}",
        f"--spm_model_file={vocabulary}",
        "--ngram=1",
        "--short_seq_prob=0",
        "--masking=dynamic",
        "--dupe_factor=1",
        "--num_shards=4",
        f"--holdout_fraction={holdout:.3g}",
    ]
    training_flags = [
        f"--albert_config_file={architecture}",
        f"--model={values}",
        *optimizer.split(),
        f"--precision={device.precision}",
        "--ngram=1",
        "--steps_per_loop=20",
    ]
    tokens = flop / _flop_per_token(architecture, values)
    per_token = 1 if config.symbols else CHARACTERS_PER_TOKEN
    passes = tokens / (text["characters"] / per_token)
    dropout = DROPOUT if passes > MANY_PASSES else 0.0
    accents = "kept" if keeps_accents else "dropped, as by the vocabulary"
    if text["lost_accents"] and not keeps_accents:
        accents += f" ({text['lost_accents']})"
    capitals = "read as small letters" if lower_case else "kept"
    joined = text["joined_lines"]
    wrapped = f"; {joined:,} ends of wrapped lines are spaces" if joined else ""
    facts = []
    is_new_english = config.language == "en" and not config.init_checkpoint
    if is_new_english and text["characters"] < SUITS_CONTINUED:
        facts.append(
            "advice: if the text is English, continue the released model on "
            "it: --init_checkpoint=albert_mini_en"
        )
    facts += [
        f"text: {text['characters']:,} characters in {text['documents']:,} "
        f"documents; capitals are {capitals}; accents are {accents}{wrapped}",
        f"vocabulary: {about_vocabulary}",
        f"examples of {', then '.join(map(str, lengths))} tokens; "
        f"{shape.batch_tokens:,} tokens a step; sentence objective "
        f"{objective}; dropout {dropout:g}",
        f"device: {device.name}, about {device.flop_rate:.1e} FLOP/s, "
        f"{device.precision}, for {config.minutes:g} minutes",
        f"training: {' '.join(training_flags)}",
    ]
    return Plan(
        facts,
        vocabulary_flags,
        records_flags,
        training_flags,
        lengths,
        shape.batch_tokens,
        objective,
        dropout,
    )


def _flop_per_token(architecture: str, values: str) -> float:
    """Of a training step: products with the kernels of the layers."""
    model = ModelConfig.from_json_file(architecture).with_overrides([values])
    attention = 4 * model.hidden_size**2
    feed_forward = 2 * model.hidden_size * model.intermediate_size
    layers = model.num_hidden_layers * model.inner_group_num
    return 6.0 * layers * (attention + feed_forward)


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
