"""The base of all settings: declaration, checks, and conversion to JSON.

Settings are fields of frozen dataclasses, one class per component. `flags.py`
makes command-line flags from them, so that a default is written once. A
dataclass checks its values when an instance is made, and raises a `UserError`.
This package does not import TensorFlow, so that help and errors appear at once.

Training and the builds of data_prep can be interrupted and resumed. Their
settings declare what a changed value affects, which decides whether the work
may resume with it. `affects` is

    "model"     the model or its task: a run never resumes
    "start"     the initial weights: as "model", but it may be evaluated
    "result"    the computed values, the default: a run resumes only with
                --allow_config_change, and a build starts from the beginning
    "nothing"   only where, how fast or how safely the work is done

A class can have another default: `class ModelConfig(Config, affects="model")`.
"""

import contextlib
import dataclasses
import inspect
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from albert_tf.errors import UserError
from albert_tf.io.artifact import flatten

# Bound of a number -> what it must do, and whether it does.
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "at_least": ("be at least", operator.ge),
    "at_most": ("be at most", operator.le),
    "below": ("be below", operator.lt),
    "divides": ("divide", lambda value, number: number % value == 0),
}

# Published models have these, which the released code of google-research/albert
# does not use: `Config.from_dict` ignores them.
_UNUSED = {
    "down_scale_factor",
    "gap_size",
    "layers_to_keep",
    "net_structure_type",
    "num_memory_blocks",
}

# Bound of an integer without `below`: JAX and TPUs count in int32.
INTEGER_LIMIT = 2**31


def setting(
    default: Any,
    help: str,  # noqa: A002
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | str | None = None,
    below: float | str | None = None,
    divides: str | None = None,
    repeated: bool = False,
    affects: str = "",
    has_flag: bool = True,
) -> Any:
    """Declares a dataclass field that is also a command-line flag.

    Args:
        default: The value without the flag.
        help: What the value is, its form and unit, and an example.
        choices: The allowed values of an enumeration.
        at_least: The smallest allowed number.
        at_most: The largest allowed number, or a setting above of this class.
        below: Exclusive upper bound, or such a setting; of an integer,
            2^31 if not given.
        divides: Such a setting, whose value must be a multiple.
        repeated: The flag is given once per item, instead of once with
            commas, because items may contain commas.
        affects: "model", "start", "result" or "nothing"; "" for that of the
            class.
        has_flag: False for a value that the command sets itself.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class BatchConfig(Config):
        ...     batch_size: int = setting(
        ...         8, "Number of examples in a step.", at_least=1
        ...     )
        >>> BatchConfig(batch_size=0)
        Traceback (most recent call last):
        albert_tf.errors.UserError: batch_size must be at least 1. Received: 0.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "at_least": at_least,
            "at_most": at_most,
            "below": below,
            "divides": divides,
            "repeated": repeated,
            "affects": affects,
            "has_flag": has_flag,
        },
    )


def inherited(config_class: type, name: str, **changes: Any) -> Any:
    """The setting `name` of a base class, with some arguments changed."""
    field = {f.name: f for f in dataclasses.fields(config_class)}[name]
    default = changes.pop("default", field.default)
    return dataclasses.field(
        default=default, metadata={**field.metadata, **changes}
    )


def flag_name(name: str) -> str:
    """The flag of a setting; drops the underscore of `from_`."""
    return name.removesuffix("_")


def fields_with_types(
    config_class: type,
) -> list[tuple[dataclasses.Field, Any]]:
    """The fields of a config dataclass, each with its resolved type."""
    hints = typing.get_type_hints(config_class)
    return [(f, hints[f.name]) for f in dataclasses.fields(config_class)]


def settings_by_path(
    config_class: type, prefix: str = ""
) -> dict[str, dataclasses.Field]:
    """All settings of a config and those nested in it, by dotted name."""
    found: dict[str, dataclasses.Field] = {}
    for field, field_type in fields_with_types(config_class):
        path = prefix + field.name
        if isinstance(field_type, type) and issubclass(field_type, Config):
            found.update(settings_by_path(field_type, f"{path}."))
        else:
            found[path] = field
    return found


@dataclasses.dataclass(frozen=True)
class Config:
    """Base class of settings; checks type, choice and range of each value."""

    def __init_subclass__(
        cls,
        without_flags: tuple[str, ...] = (),
        defaults: Mapping[str, Any] | None = None,
        affects: str = "result",
    ) -> None:
        """Changes flags and defaults of inherited settings, by name.

        `affects` is that of the settings of the class which give none.
        """
        for field in vars(cls).values():
            if isinstance(field, dataclasses.Field) and field.metadata:
                rules = dict(field.metadata)
                rules["affects"] = rules["affects"] or affects
                field.metadata = types.MappingProxyType(rules)
        base, changed = cls.__mro__[1], defaults or {}
        names = dict.fromkeys((*without_flags, *changed))
        hints = typing.get_type_hints(base) if names else {}
        cls.__annotations__ = inspect.get_annotations(cls)
        for name in names:
            changes = {"default": changed[name]} if name in changed else {}
            if name in without_flags:
                changes["has_flag"] = False
            cls.__annotations__[name] = hints[name]
            setattr(cls, name, inherited(base, name, **changes))

    def __post_init__(self) -> None:
        for field, field_type in fields_with_types(type(self)):
            value = getattr(self, field.name)
            if field_type is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            for wanted, received in self._faults(
                value, field_type, field.metadata
            ):
                raise UserError(
                    f"{field.name} must {wanted}", received=received
                )
        self.check()

    def _faults(
        self, value: Any, field_type: Any, rules: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """What a value must do but does not, and what the error shows of it."""
        if field_type == tuple[str, ...]:
            if not isinstance(value, tuple) or not all(
                isinstance(item, str) for item in value
            ):
                yield "be a list of strings", repr(value)
        # bool is a subclass of int, so compare the type itself.
        elif type(value) is not field_type and not (
            issubclass(field_type, Config) and isinstance(value, field_type)
        ):
            yield f"be of type {field_type.__name__}", repr(value)
        choices = rules.get("choices")
        if choices and value not in choices:
            yield f"be one of {', '.join(choices)}", repr(value)
        if isinstance(value, float) and not math.isfinite(value):
            yield "be a finite number", value
        if type(value) is int and rules.get("below") is None:
            rules = {**rules, "below": INTEGER_LIMIT}
        for rule, (wanted, holds) in _LIMITS.items():
            limit = bound = rules.get(rule)
            received = value
            if isinstance(limit, str):  # of another setting
                bound = getattr(self, limit)
                received = f"{value} and {bound}"
            if limit is not None and not holds(value, bound):
                yield f"{wanted} {limit}", received

    def check(self) -> None:
        """Refuses impossible combinations of values; subclasses override it."""

    def require(self, *names: str) -> None:
        """Refuses empty values of settings that a command requires.

        Raises:
            UserError: Naming the first setting that is empty.
        """
        for name in names:
            if not find_setting(self, name):
                raise UserError(
                    f"--{flag_name(name)} is required",
                    remedy="See --help for its form and an example.",
                )

    def replace(self, **values: Any) -> Self:
        """Returns a copy with new values, also of settings in nested configs.

        A name that is both a nested config and a setting of a nested config
        means the setting.

        Raises:
            TypeError: If there is no such setting.
        """
        changes = {}
        for field in dataclasses.fields(self):
            nested = getattr(self, field.name)
            if isinstance(nested, Config):
                names = {f.name for f in dataclasses.fields(nested)}
                new = {name: values.pop(name) for name in names & set(values)}
                changes[field.name] = dataclasses.replace(nested, **new)
        return dataclasses.replace(self, **changes | values)

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries and lists that JSON can represent."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def settings_affecting(self, *affects: str) -> dict[str, Any]:
        """Values as JSON, by dotted name, of settings with these `affects`."""
        fields = settings_by_path(type(self))
        return {
            name: value
            for name, value in flatten(self.to_dict()).items()
            if fields[name].metadata["affects"] in affects
        }

    def result_settings(self) -> dict[str, Any]:
        """The settings whose `affects` is not "nothing"."""
        return self.settings_affecting("model", "result")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """The inverse of `to_dict`; missing keys take their default.

        Args:
            source: The origin of the values, for error messages.

        Raises:
            UserError: For an unknown key or an invalid value.
        """
        where = f"{source}: " if source else ""
        if not isinstance(values, Mapping):
            raise UserError(
                f"{where}settings must be a JSON object",
                received=repr(values)[:80],
            )
        known = {f.name: t for f, t in fields_with_types(cls)}
        unknown = sorted(set(values) - set(known) - _UNUSED)
        if unknown:
            raise UserError(
                f"{where}unknown key {', '.join(unknown)}",
                remedy=f"Known keys: {', '.join(sorted(known))}.",
            )
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                continue
            field_type = known[name]
            if isinstance(field_type, type) and issubclass(field_type, Config):
                made[name] = field_type.from_dict(value, source)
            elif field_type == tuple[str, ...] and isinstance(value, list):
                made[name] = tuple(value)
            else:
                made[name] = value
        try:
            return cls(**made)
        except UserError as error:
            raise UserError(f"{where}{error}") from None


def find_setting(config: Config, name: str) -> Any:
    """The value of the setting `name` in a config or one nested in it.

    Raises:
        KeyError: If there is no such setting.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == name:
            return value
        if isinstance(value, Config):
            with contextlib.suppress(KeyError):
                return find_setting(value, name)
    raise KeyError(name)
