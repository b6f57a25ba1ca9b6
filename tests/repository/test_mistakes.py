"""Wrong command lines and files: one line that names the thing, no traceback.

The commands run in this process, from their flags on, as `flags.run` does.
"""

import os
import socket

import pytest
from absl import flags as absl_flags

from albert_tf import run_finetuning, run_pretraining
from albert_tf.config import (
    Config,
    ConvertConfig,
    ExportConfig,
    FillMaskConfig,
    FinetuningConfig,
    ModelConfig,
    PredictConfig,
    PretrainingConfig,
    ReportConfig,
    ServingClientConfig,
    fields_with_types,
    flag_name,
    flags,
)
from albert_tf.config.task import ScoreConfig
from albert_tf.errors import UserError
from albert_tf.finetuning import score
from albert_tf.interop.convert import convert
from albert_tf.io import faults
from albert_tf.report import __main__ as report
from albert_tf.serving import client
from albert_tf.serving.export import export
from albert_tf.serving.local_client import print_predictions
from albert_tf.serving.mask_filler import print_filled
from data_prep import build_tfrecords, inspect_records, train_tokenizer
from data_prep.config import InspectConfig, RecordsConfig, TokenizerConfig

# Config and main of each command, and flags without which it does not start.
COMMANDS = {
    "run_pretraining": (PretrainingConfig, run_pretraining.main),
    "run_finetuning": (FinetuningConfig, run_finetuning.main),
    "convert_checkpoint": (ConvertConfig, convert),
    "export_saved_model": (ExportConfig, export),
    "fill_mask": (FillMaskConfig, print_filled),
    "predict": (PredictConfig, print_predictions),
    "score": (ScoreConfig, score.main),
    "report": (ReportConfig, report.main),
    "client": (ServingClientConfig, client.main),
    "build_tfrecords": (RecordsConfig, build_tfrecords.main),
    "train_tokenizer": (TokenizerConfig, train_tokenizer.main),
    "inspect_records": (InspectConfig, inspect_records.main),
}


def message_of(command, *arguments):
    """Runs a command that must fail; returns its message, one line."""
    config_class, main = COMMANDS[command]
    values = absl_flags.FlagValues()
    flags.define(config_class, values)
    try:
        values([command, *arguments])
        main(flags.parse(config_class, values))
    except absl_flags.Error as error:
        message = str(error)
    except Exception as error:
        explained = faults.explain(error)
        if explained is None:
            raise
        message = str(explained)
    else:
        raise AssertionError(f"{command} {arguments} is accepted")
    assert "\n" not in message.strip(), message
    assert len(message) < 1500, message
    return message


def settings_of(config_class):
    """Field and type of each setting that has a flag."""
    for field, field_type in fields_with_types(config_class):
        if field_type is ModelConfig:
            continue
        if isinstance(field_type, type) and issubclass(field_type, Config):
            yield from settings_of(field_type)
        elif field.metadata["has_flag"]:
            yield field, field_type


def wrong_values(field, field_type):
    """Values that a setting must refuse."""
    if field.metadata["choices"]:
        return ["no_such_choice"]
    if field_type is bool:
        return ["maybe"]
    if field_type is int:
        at_least = field.metadata["at_least"]
        low = [] if at_least is None else [at_least - 1]
        return ["x", "1.5", "nan", "", "1e3", *low]
    if field_type is float:
        at_least = field.metadata["at_least"]
        low = [] if at_least is None else [at_least - 1]
        return ["x", "nan", "-inf", *low]
    return []


ROWS = [
    (command, field.name, str(value))
    for command, (config_class, _) in COMMANDS.items()
    for field, field_type in settings_of(config_class)
    for value in wrong_values(field, field_type)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_values_are_refused_by_name(command):
    rows = [row for row in ROWS if row[0] == command]
    config_class, _ = COMMANDS[command]
    model = "--albert_config_file=configs/models/albert_base_v2.json"
    for _, name, value in rows:
        values = absl_flags.FlagValues()
        flags.define(config_class, values)
        given = [f"--{flag_name(name)}={value}"]
        if "albert_config_file" in values:
            given.append(model)
        try:
            values([command, *given])
            flags.parse(config_class, values)
        except (absl_flags.Error, UserError) as error:
            assert flag_name(name) in str(error), (given, error)
            assert "\n" not in str(error), (given, error)
        else:
            raise AssertionError(f"{given} is accepted")


def test_there_are_many_rows():
    assert len(ROWS) >= 150


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_flag_is_named(command):
    assert "outptu_dir" in message_of(command, "--outptu_dir=x")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_flags_names_the_first_that_it_needs(command):
    assert "--" in message_of(command)


JSON = {
    "empty": "",
    "cut": '{"vocab_size": 30000, ',
    "list": "[1, 2]",
    "null": "null",
    "number": "3",
    "text": "vocab_size=30000",
    "latin-1": b'{"a": "\xe4"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep": "[" * 100_000,
    "digits": "9" * 5000,
    "unknown key": '{"hiden_size": 3}',
    "string": '{"vocab_size": "30000"}',
    "fraction": '{"hidden_size": 1.5}',
    "true": '{"hidden_size": true}',
    "negative": '{"hidden_size": -1}',
    "NaN": '{"initializer_range": NaN}',
    "infinite": '{"initializer_range": 1e999}',
    "object": '{"hidden_size": {}}',
    "odd": '{"hidden_size": 7, "num_attention_heads": 2}',
}


@pytest.mark.parametrize("content", JSON.values(), ids=JSON)
def test_an_architecture_that_is_wrong_is_named(content, tmp_path):
    path = tmp_path / "model.json"
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    message = message_of(
        "run_pretraining",
        f"--albert_config_file={path}",
        f"--output_dir={tmp_path}/run",
    )
    assert str(path) in message


def fifo(path):
    os.mkfifo(path)


def sock(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


def loop(path):
    path.symlink_to(path)


def dangling(path):
    path.symlink_to(path / "nowhere")


def empty(path):
    path.touch()


def text(path):
    path.write_text("not what you expect\n")


def noise(path):
    path.write_bytes(bytes(range(256)) * 16)


def nothing(path):
    pass


def directory(path):
    path.mkdir()


FILES = (fifo, sock, loop, dangling, empty, text, noise, nothing, directory)

# Flags of each command; {} is the file that is wrong.
INPUTS = {
    "architecture": (
        "run_pretraining",
        "--albert_config_file={}",
        "--output_dir=run",
    ),
    "records": (
        "run_pretraining",
        "--albert_config_file=configs/models/albert_base_v2.json",
        "--output_dir={}.run",
        "--input_file={}",
    ),
    "vocabulary": (
        "build_tfrecords",
        "--input_file=README.md",
        "--spm_model_file={}",
        "--output_dir={}.records",
    ),
    "corpus": (
        "build_tfrecords",
        "--input_file={}.gz",
        "--spm_model_file=tests/testdata/30k-clean.model",
        "--output_dir={}.records",
    ),
    "text": (
        "train_tokenizer",
        "--input_file={}.zst",
        "--model_prefix={}.spm",
    ),
    "inspected": ("inspect_records", "--input_file={}"),
    "model": ("convert_checkpoint", "--from={}", "--to={}.to"),
    "archive": ("convert_checkpoint", "--from={}.tar.gz", "--to={}.to"),
    "run": ("export_saved_model", "--run_dir={}", "--export_dir={}.to"),
    "saved model": ("fill_mask", "--saved_model_dir={}", "--text=a [MASK]"),
    "predicting": ("predict", "--saved_model_dir={}", "--text=a"),
    "reported": ("report", "--run_dirs={}", "--output_file={}.html"),
    "predictions": (
        "score",
        "--task=cola",
        "--data_file={}",
        "--predictions_file={}",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_files_that_are_wrong_are_named(name, tmp_path):
    command, *arguments = INPUTS[name]
    suffix = {"corpus": ".gz", "text": ".zst", "archive": ".tar.gz"}.get(
        name, ""
    )
    unnamed = []
    for number, make in enumerate(FILES):
        path = tmp_path / f"{number}{make.__name__}"
        make(path.with_name(path.name + suffix))
        message = message_of(command, *(a.format(path) for a in arguments))
        if path.name not in message:
            unnamed.append((make.__name__, message))
    assert not unnamed
    results = [p.name for p in tmp_path.iterdir() if p.suffix == ".to"]
    assert not results, "no result that passes for a complete one"


def test_an_output_below_a_file_is_named(tmp_path, tiny_records):
    (tmp_path / "file").touch()
    message = message_of(
        "build_tfrecords",
        f"--input_file={tiny_records.parent / 'text.txt'}",
        f"--spm_model_file={tiny_records.parent / 'spm.model'}",
        f"--output_dir={tmp_path}/file/records",
    )
    assert f"{tmp_path}/file" in message
