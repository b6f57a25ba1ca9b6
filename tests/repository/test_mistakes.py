"""A wrong flag or file gives one line that names it, without a traceback.

The commands run in this process, from their flags on, as `flags.run` does.
"""

import contextlib
import os
import pathlib
import signal
import socket

import pytest
from absl import flags as absl_flags

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import faults
from tests.helpers import rights
from tests.helpers.commands import find_commands, settings_of

COMMANDS = find_commands()

# Seconds after which a command counts as hanging. On a busy machine, it may
# need minutes to import TensorFlow.
PATIENCE_S = 600


@contextlib.contextmanager
def patience():
    """Ends a block that hangs, e.g. because it opens a FIFO."""

    def end(*_):
        pytest.fail(f"no message after {PATIENCE_S} s")

    handler = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def message_of(command, *arguments):
    """Runs a command that must fail; returns its message, one line."""
    config_class, main, _ = COMMANDS[command]
    values = absl_flags.FlagValues()
    flags.define(config_class, values)
    try:
        with patience():
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


def wrong_values(field):
    """Values that a setting must refuse."""
    if field.metadata["choices"]:
        return ["no_such_choice"]
    wrong = {
        bool: ["maybe"],
        int: ["x", "1.5", "nan", "", "1e3"],
        float: ["x", "nan", "-inf"],
    }.get(type(field.default), [])
    at_least, at_most = field.metadata["at_least"], field.metadata["at_most"]
    if at_least is not None:
        wrong.append(at_least - 1)
    if at_most is not None:
        wrong.append(at_most + 1e-5)
    if type(field.default) is int:
        wrong.append(field.metadata["below"] or 2**31)
    return wrong


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_values_are_refused_by_name(command):
    config_class, *_ = COMMANDS[command]
    for name, field in settings_of(config_class).items():
        for value in wrong_values(field):
            values = absl_flags.FlagValues()
            flags.define(config_class, values)
            given = [f"--{name}={value}"]
            if "albert_config_file" in values:
                given.append(f"--albert_config_file={BASE}")
            try:
                values([command, *given])
                flags.parse(config_class, values)
            except (absl_flags.Error, UserError) as error:
                assert name in str(error), (given, error)
                assert "\n" not in str(error), (given, error)
            else:
                raise AssertionError(f"{given} is accepted")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_flag_is_named(command):
    assert "outptu_dir" in message_of(command, "--outptu_dir=x")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_flags_names_one_that_it_needs(command):
    flag, rest = message_of(command).split(" ", 1)
    assert rest.startswith("is required. ")
    given = f"{flag}={BASE}"
    assert not message_of(command, given).startswith(f"{flag} is required")


WRONG_JSON = [
    "",
    '{"vocab_size": 30000, ',
    "[1, 2]",
    "vocab_size=30000",
    b'{"a": "\xe4"}',
    '{"a": 1}'.encode("utf-16"),
    "[" * 100_000,
    "9" * 5000,
    '{"hiden_size": 3}',
    '{"vocab_size": "30000"}',
    '{"hidden_size": 1.5}',
    '{"hidden_size": true}',
    '{"hidden_size": -1}',
    '{"initializer_range": NaN}',
    '{"initializer_range": 1e999}',
    '{"hidden_size": {}}',
    '{"hidden_size": 7, "num_attention_heads": 2}',
]


def test_an_architecture_that_is_wrong_is_named(tmp_path):
    path = tmp_path / "model.json"
    for content in WRONG_JSON:
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
        message = message_of(
            "run_pretraining",
            f"--albert_config_file={path}",
            f"--output_dir={tmp_path}/run",
        )
        assert str(path) in message, content[:50]


def unreadable(path):
    path.write_text("not for you\n")
    path.chmod(0)


FILES = {
    "fifo": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to(path / "nowhere"),
    "empty": pathlib.Path.touch,
    "text": lambda path: path.write_text("not what you expect\n"),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 16),
    "nothing": lambda path: None,
    "directory": pathlib.Path.mkdir,
    "unreadable": unreadable,
}

# Commands with flags; {} is the file that is wrong.
BASE = "configs/models/albert_base_v2.json"
VOCABULARY = "tests/testdata/30k-clean.model"
INPUTS = {
    "architecture": "run_pretraining --albert_config_file={} --output_dir=run",
    "records": f"run_pretraining --albert_config_file={BASE} "
    "--output_dir={}.run --input_file={}",
    "vocabulary": "build_tfrecords --input_file=README.md "
    "--spm_model_file={} --output_dir={}.records",
    "corpus": "build_tfrecords --input_file={}.gz "
    f"--spm_model_file={VOCABULARY} --output_dir={{}}.records",
    "text": "train_tokenizer --input_file={}.zst --model_prefix={}.spm",
    "inspected": "inspect_records --input_file={}",
    "model": "convert_checkpoint --from={} --to={}.to",
    "run": "export_saved_model --run_dir={} --export_dir={}.to",
    "predicting": "predict --saved_model_dir={} --text=a",
    "reported": "report --run_dirs={} --output_file={}.html",
}

# The end of the name of the file, where the command demands one.
SUFFIXES = {"corpus": ".gz", "text": ".zst"}

# Inputs that must be files.
FILE_INPUTS = "architecture records vocabulary corpus text inspected"


@pytest.mark.parametrize("name", INPUTS)
def test_files_that_are_wrong_are_named(name, tmp_path):
    command, *arguments = INPUTS[name].split()
    suffix = SUFFIXES.get(name, "")
    unnamed, inputs = [], set()
    for number, (kind, make) in enumerate(FILES.items()):
        if kind == "text" and name in ("corpus", "text"):
            continue  # a text is read under any name
        path = tmp_path / f"{number}{kind}"
        make(path.with_name(path.name + suffix))
        inputs.update(tmp_path.iterdir())
        with rights.without_root():
            message = message_of(
                command, *(a.replace("{}", str(path)) for a in arguments)
            )
        if path.name not in message:
            unnamed.append((kind, message))
        if kind == "unreadable" and name in FILE_INPUTS.split():
            assert "Permission denied" in message
        left = {p.name for p in tmp_path.rglob("*") if p not in inputs}
        assert not left, "a failed command must leave no result"
    assert not unnamed
