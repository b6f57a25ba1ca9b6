"""All commands of the package: `albert-tf COMMAND --SETTING=VALUE ...`."""

import importlib.util
import pathlib
import re
import runpy
import sys

import albert_tf
from albert_tf.config import flags
from albert_tf.errors import UserError, did_you_mean
from albert_tf.io import shipped

COMMANDS = {
    "first-model": "albert_tf.first_model",
    "train-tokenizer": "data_prep.train_tokenizer",
    "build-tfrecords": "data_prep.build_tfrecords",
    "inspect-text": "data_prep.inspect_text",
    "inspect-records": "data_prep.inspect_records",
    "ngram-baselines": "data_prep.ngram_baselines",
    "run-pretraining": "albert_tf.run_pretraining",
    "run-finetuning": "albert_tf.run_finetuning",
    "convert-checkpoint": "albert_tf.convert_checkpoint",
    "export-saved-model": "albert_tf.export_saved_model",
    "predict": "albert_tf.predict",
    "score": "albert_tf.score",
    "report": "albert_tf.report.__main__",
    "sweep": "albert_tf.sweep",
    "compile-check": "tpu.compile_check",
}


def _describe(module: str) -> str:
    """The first line of the docstring of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin
    with open(spec.origin, encoding="utf-8") as file:
        first = re.search(r'"""(.*?)\.?(\n|""")', file.read())
    return first[1] if first else ""


def main() -> None:
    """Runs the command that the first argument names, as `python -m` does."""
    # A folder `data_prep` or `tpu` of the user must not hide a package.
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    with flags.end_in_one_line():
        _run(sys.argv[1] if len(sys.argv) > 1 else "")


def _run(command: str) -> None:
    name = command.replace("_", "-")
    if name in COMMANDS:
        del sys.argv[0]
        runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)
    elif command == "--version":
        print(f"albert-tf {albert_tf.__version__}")
    elif command == "constraints":
        print(shipped.CONSTRAINTS.read_text(), end="")
    elif command in ("", "-h", "--help"):
        print("usage: albert-tf COMMAND --SETTING=VALUE ...\n")
        for name, module in COMMANDS.items():
            print(f"  {name:20}{_describe(module)}")
        print(f"  {'constraints':20}Print tested versions, for pip install -c")
        print("\nalbert-tf COMMAND --help lists the settings of a command.")
    else:
        raise UserError(
            f"the command must be one of {', '.join(COMMANDS)}",
            received=command,
            remedy=did_you_mean(name, COMMANDS),
        )


if __name__ == "__main__":
    main()
