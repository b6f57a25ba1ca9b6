import glob
import os
import pathlib
import re
import subprocess
import sys

import pytest
from absl import flags as absl_flags

from albert_tf.cluster import versions
from albert_tf.config import (
    ConvertConfig,
    FinetuningConfig,
    ModelConfig,
    PredictConfig,
    PretrainingConfig,
    TrainingConfig,
    flags,
    removed,
)
from albert_tf.errors import UserError
from data_prep.config import RecordsConfig
from tests.helpers.commands import find_commands, settings_of
from tpu.compile_check import CompileCheckConfig

ROOT = pathlib.Path(__file__).parents[2]


def defined(config_class):
    flag_values = absl_flags.FlagValues()
    flags.define(config_class, flag_values)
    return flag_values


def parse(config_class, *arguments):
    return flags.parse_line(config_class, arguments)


def test_a_setting_may_be_named_like_a_python_keyword():
    """The setting from_ is --from, on the command line and in errors."""
    assert parse(ConvertConfig, "--from=a", "--to=b").from_ == "a"
    with pytest.raises(UserError, match="--from is required"):
        parse(ConvertConfig, "--to=b").require("from_", "to")


def test_settings_that_a_command_finds_have_no_flag():
    """The task gives the labels, for example; fine-tuning uses no masks."""
    flags_of_finetuning = set(defined(FinetuningConfig))
    assert not flags_of_finetuning & {"ngram", "input_file", "labels", "kind"}
    assert {"task", "squad_head", "checkpoint"} < flags_of_finetuning
    with pytest.raises(UserError, match="albert_config_file is required"):
        parse(FinetuningConfig, "--model=hidden_size=8")


def test_training_from_scratch_needs_an_architecture():
    """Otherwise it would silently be that of base."""
    arguments = ("--from_scratch", "--init_vocabulary=spiece.model")
    with pytest.raises(UserError, match="albert_config_file is required"):
        parse(FinetuningConfig, *arguments)
    path = "configs/models/albert_base_v1.json"
    parse(FinetuningConfig, *arguments, f"--albert_config_file={path}")


def test_flags_of_every_type_reach_the_config(tmp_path):
    architecture = tmp_path / "albert.json"
    architecture.write_text('{"hidden_size": 36, "num_attention_heads": 3}')
    config = parse(
        PretrainingConfig,
        f"--albert_config_file={architecture}",
        "--input_file=a,b/*.tfrecord",
        "--learning_rate=0.25",
        "--num_train_steps=7000",
        "--optimizer=adamw",
    )
    assert config.model == ModelConfig(hidden_size=36, num_attention_heads=3)
    assert config.data.input_file == ("a", "b/*.tfrecord")
    assert config.optimizer.learning_rate == 0.25
    assert config.optimizer.optimizer == "adamw"
    assert config.training == TrainingConfig(num_train_steps=7000)
    assert parse(RecordsConfig, "--nodo_lower_case").do_lower_case is False


@pytest.fixture
def architecture(tmp_path):
    """The flag of a file with two values that are not defaults."""
    file = tmp_path / "albert.json"
    file.write_text('{"hidden_size": 36, "num_attention_heads": 3}')
    return f"--albert_config_file={file}"


@pytest.mark.parametrize(
    ("config_class", "model_of"),
    [
        (PretrainingConfig, lambda config: config.model),
        (CompileCheckConfig, lambda config: config.run.model),
    ],
)
def test_model_replaces_values_of_the_architecture_file(
    architecture, config_class, model_of
):
    flags_given = (
        "--model=embedding_size=64,parameter_sharing=attention",
        "--model=hidden_dropout_prob=0,num_attention_heads=4",
        "--model=embedding_size=32",  # the last value counts
    )
    assert model_of(parse(config_class, architecture, *flags_given)) == (
        ModelConfig(
            hidden_size=36,
            embedding_size=32,
            parameter_sharing="attention",
            hidden_dropout_prob=0.0,
            num_attention_heads=4,
        )
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("embeding_size=64", "--model: unknown key embeding_size"),
        ("embeding_size=64", "Known keys: attention_probs_dropout_prob, emb"),
        ("embedding_size=x", "embedding_size must be of type int"),
        ("hidden_dropout_prob=1", "hidden_dropout_prob must be below 1"),
        ("hidden_size=37", "--model: num_attention_heads must divide"),
        ("embedding_size", "--model must be NAME=VALUE"),
        ("embedding_size=64,", "--model must be NAME=VALUE"),
        ("embedding_size=", "Example: --model=embedding_size=64,param"),
    ],
)
def test_wrong_values_of_model_are_refused(architecture, text, said):
    with pytest.raises(UserError) as refused:
        parse(PretrainingConfig, architecture, f"--model={text}")
    assert said in str(refused.value)


def test_a_repeated_flag_may_hold_commas():
    config = parse(PredictConfig, "--text=a, [MASK]", "--text=b")
    assert config.text == ("a, [MASK]", "b")


HELP = """
import os, runpy, sys
from albert_tf.config import flags
for module in sys.argv[1:]:
    if not os.fork():
        sys.argv, status = [module, "--help"], 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
        slow = {"tensorflow", "scipy", "sklearn", "matplotlib", "jax"}
        print(f"STATUS {status or 0}, SLOW {slow & {*sys.modules}}", flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_help_answers_at_once():
    """Each command in a process of its own, which has absl and NumPy only."""
    modules = [module for *_, module in find_commands().values()]
    done = subprocess.run(
        [sys.executable, "-c", HELP, *modules], capture_output=True, text=True
    )
    *texts, rest = done.stdout.split("STATUS 0, SLOW set()\n")
    assert not rest
    said = dict(zip(modules, texts, strict=True))
    assert [m for m in modules if f"python -m {m}" not in said[m]] == []
    text = said["albert_tf.run_pretraining"]
    listed = re.findall(r"^  --(?:\[no\])?(\w+):", text, re.M)
    wanted = settings_of(PretrainingConfig).keys()
    assert wanted | {"albert_config_file", "model"} <= set(listed)
    # The help has defaults and examples, too.
    assert "(default: '4096')" in text
    assert "e.g. 0:0.1,1000000:0.0" in re.sub(r"\s+", " ", text)


# All import TensorFlow; the last one, for a path on gs://.
NEED_TENSORFLOW = (
    "albert_tf.convert_checkpoint --from=models/albert_mini_en --to=a",
    "albert_tf.export_saved_model --run_dir=models/albert_mini_en "
    "--export_dir=a",
    "albert_tf.predict --saved_model_dir=a --text=b",
    "albert_tf.report --run_dirs=a --output_file=b.png",
    "albert_tf.run_finetuning --output_dir=a",
    "albert_tf.run_pretraining --output_dir=a "
    "--albert_config_file=configs/models/albert_base_v2.json",
    "data_prep.inspect_records --input_file=gs://a/b",
)


@pytest.mark.slow
def test_without_tensorflow_a_command_ends_in_one_line():
    program = "import sys; sys.modules['tensorflow'] = None\n" + HELP
    program = program.replace(
        '[module, "--help"], 0', "module.split(), 0; module = sys.argv[0]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *NEED_TENSORFLOW],
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("STATUS 1") == len(NEED_TENSORFLOW)
    for line in done.stderr.splitlines():
        assert line.startswith("error: tensorflow must be installed. Received:")
        assert line.endswith("pip install 'albert-tf[cpu]', or [gpu] or [tpu].")
    assert done.stderr.count("\n") == len(NEED_TENSORFLOW)


def run_command(body, *arguments):
    """Runs a command whose `main` is `body`, in its own process."""
    source = (
        "import errno, sys\n"
        "from absl import logging\n"
        "from albert_tf.config import ExportConfig, flags\n"
        "from albert_tf.errors import UserError\n"
        f"def main(config):\n    {body}\n"
        "flags.run(main, ExportConfig)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_tensorflow_starts_in_silence_without_a_gpu(monkeypatch):
    if any(map(glob.glob, versions.ACCELERATORS)):
        pytest.skip("a machine with a GPU or TPU")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    done = run_command(
        "from albert_tf.cluster.versions import import_tensorflow\n"
        "    import_tensorflow()\n"
        "    import tensorflow as tf; tf.constant(1)"
    )
    assert (done.returncode, done.stderr) == (0, "")


START = "print('started')"


@pytest.mark.parametrize(
    ("body", "argument", "status", "said"),
    [
        ("print(config.top_k)", "--top_k=3", 0, "3"),
        (
            'raise UserError("x must be 1", received=2)',
            *("", 1, r"error: x must be 1\. Received: 2\."),
        ),
        (
            "from albert_tf.errors import RetryError\n"
            "    raise RetryError('x must answer')",
            *("", 75, r"error: x must answer\."),
        ),
        (START, "--top_k=0", 1, r"error: top_k must be at least 1.*: 0\."),
        (START, "--export_dri=x", 1, r".*flag 'export_dri'.*export_dir\b.*"),
        (START, "top_k=3", 1, r".*must be given as --name=value.*top_k=3.*"),
        (
            'raise OSError(errno.ENOSPC, "No space left")',
            *("", 1, r"error: the disk is full: [^\n]*"),
        ),
        (
            "sys.modules['torch'] = None; import torch",
            *(
                "",
                1,
                r"error: torch must be installed\..*albert-tf\[interop\]'\.",
            ),
        ),
        ('raise RuntimeError("broken")', "", 1, ".*Traceback.*broken"),
        (
            "raise KeyboardInterrupt",
            *("", 130, "interrupted; run the same command again"),
        ),
    ],
)
def test_a_command_runs_or_ends_in_one_line(body, argument, status, said):
    """Only a failure that is nobody's mistake shows a traceback."""
    done = run_command(body, *[argument] * bool(argument))
    assert done.returncode == status
    output = done.stdout + done.stderr
    assert re.fullmatch(f"{said}\n", output, re.S), output
    assert "started" not in output
    assert ("Traceback" in output) == ("RuntimeError" in body)


def test_a_removed_flag_names_its_replacement(monkeypatch):
    """One line, for a flag that no command has any more."""
    flags_of_commands = {
        name
        for config_class, *_ in find_commands().values()
        for name in settings_of(config_class)
    }
    assert not set(removed.REMOVED) & flags_of_commands
    monkeypatch.setitem(removed.REMOVED, "old_name", "use --seed")
    said = "^--old_name was removed: use --seed.$"
    with pytest.raises(UserError, match=said):
        flags._parse_command_line(["command", "--old_name=3"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--precison=float32", "precison'. Did you mean: precision"),
        ("--precision=float16", "value should be one of <float32|mixed_"),
    ],
)
def test_a_wrong_flag_is_named_with_a_recipe(argument, said):
    """The recipe includes a file by a name that only we can find."""
    command = [sys.executable, "-m", "albert_tf.run_pretraining"]
    command += ["--flagfile=mini_en_128", argument]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["albert_tf", "--help"], ["data_prep.build_tfrecords", "--help"]],
)
def test_output_that_nobody_reads_ends_in_silence(arguments):
    """As `| head -1` does; a full device is named in one line."""
    command = [sys.executable, "-m", *arguments]
    reader, closed_pipe = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, stdout=closed_pipe, stderr=subprocess.PIPE, text=True
    )
    os.close(closed_pipe)
    assert (done.returncode, done.stderr) == (flags.EXIT_CLOSED_PIPE, "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert re.fullmatch(r"error: the disk is full: .*\n", done.stderr)


def test_a_misspelt_command_is_corrected(tmp_path):
    """Also if the user's own folder is named like a package of commands."""
    for name in ("data_prep", "tpu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "albert_tf", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )

    done = run("pretain")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "Received: pretain. Did you mean run-pretraining?\n"
    )
    for command in ("train-tokenizer", "compile-check"):
        done = run(command, "-h")
        assert done.returncode == 0, done.stderr
        assert command.replace("-", "_") in done.stdout
