"""absl flags made of the config dataclasses; no flag is defined elsewhere.

A command ends with

    if __name__ == "__main__":
        flags.run(main, PretrainingConfig)

and its `main` receives the config that the command line describes. `main`
imports TensorFlow, so that --help and invalid settings answer at once.
"""

import contextlib
import dataclasses
import logging as python_logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import app, logging
from absl import flags as absl_flags

from albert_tf.config import (
    Config,
    ModelConfig,
    fields_with_types,
    flag_name,
)
from albert_tf.config.model import override_types
from albert_tf.config.removed import REMOVED
from albert_tf.errors import UserError
from albert_tf.io import faults, shipped

# --help then lists the flags under the command instead of this module.
absl_flags.disclaim_key_flags()

ConfigT = TypeVar("ConfigT", bound=Config)

# Directory of a package whose INFO lines are not logged.
_TENSORFLOW = f"{os.sep}tensorflow{os.sep}"

# As a shell reports SIGINT and SIGPIPE.
EXIT_INTERRUPTED, EXIT_CLOSED_PIPE = 130, 141


def define(
    config_class: type[Config],
    flag_values: absl_flags.FlagValues = absl_flags.FLAGS,
) -> None:
    """Defines a flag for each setting of a config and its nested configs.

    The settings of the architecture have no flags of their own: they come from
    the JSON file `--albert_config_file`, and `--model` replaces some of them.
    """
    for field, field_type in fields_with_types(config_class):
        if field_type is ModelConfig:
            absl_flags.DEFINE_string(
                "albert_config_file",
                "",
                "Name of an architecture, e.g. albert_base_v2, or a JSON file "
                "in the schema of google-research/albert, e.g. "
                "configs/models/albert_base_v2.json.",
                flag_values=flag_values,
            )
            absl_flags.DEFINE_multi_string(
                "model",
                [],
                "Values that replace those of albert_config_file, as "
                "NAME=VALUE,..., e.g. "
                "--model=embedding_size=64,parameter_sharing=attention. The "
                "flag may be given several times; the last value of a name "
                f"counts. Names: {', '.join(override_types())}.",
                flag_values=flag_values,
            )
        elif isinstance(field_type, type) and issubclass(field_type, Config):
            define(field_type, flag_values)
        elif field.metadata["has_flag"]:
            _define_one(field, field_type, flag_values)


def _define_one(
    field: dataclasses.Field, field_type: Any, flag_values: Any
) -> None:
    rules, default = field.metadata, field.default
    definers: dict[Any, Callable[..., Any]] = {
        bool: absl_flags.DEFINE_boolean,
        int: absl_flags.DEFINE_integer,
        float: absl_flags.DEFINE_float,
        str: absl_flags.DEFINE_string,
        tuple[str, ...]: absl_flags.DEFINE_list,
    }
    definer = definers[field_type]
    choices: list[Any] = []
    if rules["repeated"]:
        definer = absl_flags.DEFINE_multi_string
    elif rules["choices"]:
        definer, choices = absl_flags.DEFINE_enum, [rules["choices"]]
    definer(
        flag_name(field.name),
        list(default) if isinstance(default, tuple) else default,
        *choices,
        rules["help"],
        flag_values=flag_values,
    )


def parse(
    config_class: type[ConfigT],
    flag_values: absl_flags.FlagValues = absl_flags.FLAGS,
) -> ConfigT:
    """Makes a config from parsed flags.

    A config class that sets `FINDS_MODEL` needs `--albert_config_file` only
    with `--from_scratch` or `--model`. Otherwise, its command takes the
    architecture from the model that it reads.

    Raises:
        UserError: For an invalid value, combination or architecture file.
    """
    made: dict[str, Any] = {}
    for field, field_type in fields_with_types(config_class):
        if field_type is ModelConfig:
            path = flag_values["albert_config_file"].value
            if not path:
                needed = flag_values["model"].value or (
                    not getattr(config_class, "FINDS_MODEL", False)
                    or flag_values["from_scratch"].value
                )
                if not needed:
                    continue
                raise UserError(
                    "--albert_config_file is required",
                    remedy="Example: --albert_config_file=albert_base_v2",
                )
            made[field.name] = ModelConfig.from_json_file(path).with_overrides(
                flag_values["model"].value or ()
            )
        elif isinstance(field_type, type) and issubclass(field_type, Config):
            made[field.name] = parse(field_type, flag_values)
        elif field.metadata["has_flag"]:
            value = flag_values[flag_name(field.name)].value
            made[field.name] = (
                tuple(value) if isinstance(value, list) else value
            )
    return config_class(**made)


def parse_line(
    config_class: type[ConfigT], arguments: Sequence[str]
) -> ConfigT:
    """Makes a config from the arguments of a command line; see `parse`.

    Raises:
        absl.flags.Error: For a flag that does not exist, or its type.
    """
    flag_values = absl_flags.FlagValues()
    define(config_class, flag_values)
    words = [config_class.__name__, *shipped.expand(arguments)]
    _refuse_words(flag_values(words)[1:])
    return parse(config_class, flag_values)


def _refuse_words(words: Sequence[str]) -> None:
    if words:
        raise UserError(
            "settings must be given as --name=value", received=" ".join(words)
        )


def run(
    main: Callable[[ConfigT], int | None], config_class: type[ConfigT]
) -> None:
    """Runs a command: defines its flags, parses them, calls `main(config)`.

    `--verbosity=1` also logs the traceback of an error.
    """

    def call_main(arguments: Sequence[str]) -> int:
        logging.use_absl_handler()
        logging.get_absl_handler().addFilter(_should_log)
        _refuse_words(arguments[1:])
        return main(parse(config_class)) or 0

    define(config_class)
    absl_flags.FLAGS.set_default("verbosity", logging.INFO)
    with end_in_one_line():
        app.run(call_main, flags_parser=_parse_command_line)


@contextlib.contextmanager
def end_in_one_line() -> Iterator[None]:
    """Ends the process with one line on standard error if the block fails.

    Raises:
        SystemExit: With the `exit_status` of a `UserError`, or of the error
            that `io.faults.explain` gives instead; 130 after Ctrl-C; 141,
            without a line, if the reader of standard output has closed it.
    """
    try:
        try:
            yield
        finally:
            print(end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted; run the same command again", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_CLOSED_PIPE)
        explained = faults.explain(error)
        if explained is None:
            raise
        logging.debug("traceback of the error", exc_info=True)
        print(f"error: {explained}", file=sys.stderr)
        sys.exit(explained.exit_status)


def _drop_output() -> None:
    """Drops output that cannot be written, which would fail again at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parse_command_line(arguments: list[str]) -> list[str]:
    """Parses the flags; returns the other arguments."""
    words = ["--help" if word == "-h" else word for word in arguments[1:]]
    words = [arguments[0], *shipped.expand(words)]
    try:
        return absl_flags.FLAGS(words)
    except SystemExit:  # after --help; absl's status is 1
        sys.exit(0)
    except absl_flags.UnrecognizedFlagError as error:
        if instead := REMOVED.get(error.flagname):
            raise UserError(
                f"--{error.flagname} was removed: {instead}"
            ) from None
        return app.parse_flags_with_usage(words)
    except absl_flags.Error:
        return app.parse_flags_with_usage(words)


def _should_log(record: python_logging.LogRecord) -> bool:
    """Whether to log a record; drops TensorFlow's INFO lines."""
    return (
        record.levelno > python_logging.INFO
        or _TENSORFLOW not in record.pathname
    )
