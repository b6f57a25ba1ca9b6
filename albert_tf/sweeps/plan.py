"""The runs of a sweep, made from its settings and checked before one starts.

A variant is a set of flags; a run is a variant with a seed. The flags of a run
are those of `base_flagfile`, `base_flags`, the variant and the seed, in this
order, so that later ones override earlier ones.
"""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags as absl_flags

from albert_tf.config import (
    PretrainingConfig,
    SweepConfig,
    flags,
    flatten,
)
from albert_tf.errors import UserError
from albert_tf.sweeps import stages

RUNS_DIR = "runs"

# Metrics of an evaluation. Sentence metrics need a sentence head.
EVALUATION_METRICS = (
    "loss",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_order_loss",
    "sentence_order_accuracy",
)
# Sums over the lines of a run's log: the metric of a line.
TRAINING_TOTALS = {
    "training_seconds": "loop_seconds",
    "training_cpu_seconds": "cpu_seconds",
}

# Settings that the sweep decides.
_OWN_SETTINGS = ("output_dir", "mode", "dry_run")
_NAME = re.compile(r"[A-Za-z0-9][\w.]*")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep.

    Attributes:
        variant: Name of its variant.
        seed: Its seed in `--seeds`; None for that of its flags.
        flags: Flags of run_pretraining, without the output directory.
        config: The settings that they describe.
        starts_from: The run whose weights it starts from, of the same seed.
        evaluations: All settings of each further evaluation, by name.

    Example:
        >>> run = PlannedRun("narrow", 2, (), PretrainingConfig())
        >>> run.name
        'narrow-seed2'
    """

    variant: str
    seed: int | None
    flags: tuple[str, ...]
    config: PretrainingConfig
    starts_from: "PlannedRun | None" = None
    evaluations: Mapping[str, PretrainingConfig] = dataclasses.field(
        default_factory=dict
    )

    @property
    def name(self) -> str:
        """Name of the run, and of its directory."""
        if self.seed is None:
            return self.variant
        return f"{self.variant}-seed{self.seed}"

    @property
    def stages(self) -> list["PlannedRun"]:
        """This run and the runs that it starts from, latest first."""
        return [self, *(self.starts_from.stages if self.starts_from else [])]

    def run_dir(self, sweep_dir: str) -> str:
        """Its run directory."""
        return f"{sweep_dir.rstrip('/')}/{RUNS_DIR}/{self.name}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked settings of a sweep.

    Attributes:
        runs: The runs, ordered by seed and then by variant, so that an
            interrupted sweep can compare all variants early.
        evaluations: Flags of each further evaluation, by name.
        metrics: Columns of the table.
        pairs: Variants to compare; the difference is first minus second.
        paper: Published values by variant and metric.

    Example:
        >>> runs = [
        ...     PlannedRun(variant, seed, (), PretrainingConfig())
        ...     for seed in (1, 2) for variant in ("narrow", "wide")
        ... ]
        >>> Plan(tuple(runs), {}, ("loss",), (("narrow", "wide"),), {}).variants
        ('narrow', 'wide')
    """

    runs: tuple[PlannedRun, ...]
    evaluations: Mapping[str, tuple[str, ...]]
    metrics: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    paper: Mapping[str, Mapping[str, float]]

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in order."""
        return tuple(dict.fromkeys(run.variant for run in self.runs))


def make_plan(config: SweepConfig) -> Plan:
    """Makes the plan of a sweep; reads flag files and architectures only.

    Raises:
        UserError: For an unknown or invalid flag, a variant or run that is
            listed twice, names of variants and metrics that do not exist, or a
            variant that starts from none of the earlier ones.
    """
    if not config.variant:
        raise UserError(
            "--variant is required",
            remedy="Give it once per variant, or give a --flagfile of "
            "configs/ablations.",
        )
    base = (
        [f"--flagfile={config.base_flagfile}"] if config.base_flagfile else []
    )
    for text in config.base_flags:
        base += _split("base_flags", text, config.records_dir)
    variants = _named("variant", config.variant, config.records_dir)
    evaluations = _named("evaluation", config.evaluation, config.records_dir)
    seeds = _parse_seeds(config.seeds)
    starts: dict[str, str] = {}
    for name, own in variants.items():
        source = f"variant {name}"
        if config.seeds and _parse_flags(source, own)["seed"].present:
            raise UserError(
                f"{source} must not set --seed: --seeds sets it",
                received=" ".join(own),
                remedy="Remove --seed from the variant, or leave out --seeds.",
            )
        parsed = _parse(source, [*base, *own])
        starts[name] = stages.find_start(source, parsed, tuple(starts))
    runs: list[PlannedRun] = []
    for seed in seeds:
        of_seed: dict[str, PlannedRun] = {}
        for name, own in variants.items():
            all_flags = [*base, *own]
            if seed is not None:
                stage_seed = stages.seed_of_stage(seed, name, starts)
                all_flags.append(f"--seed={stage_seed}")
            settings = _parse(f"variant {name}", all_flags)
            _check_own_settings(f"variant {name}", settings, "train")
            evaluated: dict[str, PretrainingConfig] = {}
            for evaluation, further in evaluations.items():
                source = f"evaluation {evaluation} of variant {name}"
                parsed = _parse(source, [*all_flags, "--mode=eval", *further])
                _check_own_settings(source, parsed, "eval")
                stages.find_start(source, parsed, tuple(starts))
                evaluated[evaluation] = parsed
            start = of_seed.get(starts[name])
            of_seed[name] = PlannedRun(
                name, seed, tuple(all_flags), settings, start, evaluated
            )
        runs += of_seed.values()
    _check_different(runs)
    metrics = _check_metrics(config.metrics, evaluations)
    _check_held_out(runs, metrics)
    return Plan(
        tuple(runs),
        evaluations,
        metrics,
        _parse_pairs(config.compare, variants),
        _parse_paper(config.paper, variants),
    )


def describe(plan: Plan) -> list[str]:
    """Describes the runs: for each, the settings that differ between runs."""
    flat = {run.name: flatten(run.config.to_dict()) for run in plan.runs}
    names = dict.fromkeys(name for values in flat.values() for name in values)
    differ = [
        name
        for name in names
        if len({json.dumps(values[name]) for values in flat.values()}) > 1
    ]
    return [
        f"{run}: "
        + ", ".join(f"{n.split('.')[-1]}={_plain(values[n])}" for n in differ)
        for run, values in flat.items()
    ]


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _split(source: str, text: str, records_dir: str) -> list[str]:
    """Splits flags, and fills in the directory of the records."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"{source} must be flags separated by spaces: {error}",
            received=text,
        ) from None
    for word in words:
        if "{records_dir}" in word and not records_dir:
            raise UserError(
                "--records_dir is required",
                remedy=f"It is part of {word} in {source}.",
            )
    return [word.replace("{records_dir}", records_dir) for word in words]


def _named(
    setting: str, texts: Iterable[str], records_dir: str
) -> dict[str, tuple[str, ...]]:
    """Parses `NAME: FLAGS`."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        name = name.strip()
        if not colon or not _NAME.fullmatch(name):
            raise UserError(
                f"{setting} must be NAME: FLAGS, with a name of letters, "
                "digits, _ and .",
                received=repr(text),
                remedy=f"Example: --{setting}='narrow: "
                "--model=embedding_size=64'",
            )
        if name in found:
            raise UserError(
                f"{setting} must have each name once", received=name
            )
        found[name] = tuple(_split(f"{setting} {name}", rest, records_dir))
    return found


def _parse(source: str, arguments: Sequence[str]) -> PretrainingConfig:
    """Parses settings of run_pretraining; errors name their source."""
    values = _parse_flags(source, arguments)
    try:
        return flags.parse(PretrainingConfig, values)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _parse_flags(
    source: str, arguments: Sequence[str]
) -> absl_flags.FlagValues:
    """Parses flags of run_pretraining, whose values may not fit together."""
    values = absl_flags.FlagValues()
    flags.define(PretrainingConfig, values)
    try:
        _, *rest = values(["run_pretraining", *arguments])
    except absl_flags.Error as error:
        raise UserError(f"{source}: {error}") from None
    if rest:
        raise UserError(
            f"{source}: settings must be given as --name=value",
            received=" ".join(rest),
        )
    return values


def _check_own_settings(
    source: str, config: PretrainingConfig, mode: str
) -> None:
    """Checks that flags leave the settings to the sweep that it decides."""
    wanted = dataclasses.replace(PretrainingConfig().training, mode=mode)
    for setting in _OWN_SETTINGS:
        value = getattr(config.training, setting)
        if value != getattr(wanted, setting):
            raise UserError(
                f"{source} must not set --{setting}: the sweep sets it",
                received=value,
                remedy="Remove the flag.",
            )


def _check_different(runs: Sequence[PlannedRun]) -> None:
    """Refuses two runs with the same settings."""
    seen: dict[str, str] = {}
    for run in runs:
        key = json.dumps(run.config.to_dict())
        if key in seen:
            raise UserError(
                "a sweep must list each run once",
                received=f"equal settings in {seen[key]} and {run.name}",
            )
        seen[key] = run.name


def _parse_seeds(seeds: Sequence[str]) -> list[int | None]:
    if not seeds:
        return [None]
    if not all(seed.isdecimal() for seed in seeds) or (
        len(set(map(int, seeds))) < len(seeds)
    ):
        raise UserError(
            "seeds must be different whole numbers",
            received=",".join(seeds),
            remedy="Example: --seeds=1,2",
        )
    return [int(seed) for seed in seeds]


def _check_metrics(
    metrics: Sequence[str], evaluations: Mapping[str, Any]
) -> tuple[str, ...]:
    known = [
        *EVALUATION_METRICS,
        *TRAINING_TOTALS,
        *(f"{e}/{m}" for e in evaluations for m in EVALUATION_METRICS),
    ]
    for metric in metrics:
        if metric not in known:
            raise UserError(
                "metrics must be metrics of the runs",
                received=metric,
                remedy=f"Known: {', '.join(known)}.",
            )
    return tuple(metrics)


def _check_held_out(runs: Sequence[PlannedRun], metrics: Sequence[str]) -> None:
    """Checks that some run has records for the metrics of its own evaluation.

    Without them, the table would have no values.
    """
    plain = [metric for metric in metrics if metric in EVALUATION_METRICS]
    if plain and not any(run.config.data.eval_input_file for run in runs):
        raise UserError(
            f"the metrics {', '.join(plain)} need held-out records",
            received="no --eval_input_file in any run",
            remedy="Set --eval_input_file in --base_flags, or name the metrics "
            "of an --evaluation, e.g. --metrics=NAME/masked_lm_loss.",
        )


def _parse_pairs(
    texts: Sequence[str], variants: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        first, _, second = text.partition(":")
        if first not in variants or second not in variants or first == second:
            raise UserError(
                "compare must be pairs of variants, as A:B,...",
                received=text,
                remedy=f"Variants: {', '.join(variants)}.",
            )
        pairs.append((first, second))
    return tuple(pairs)


def _parse_paper(
    texts: Sequence[str], variants: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        name = name.strip()
        if name not in variants or name in found:
            raise UserError(
                "paper must be NAME: METRIC=VALUE ..., once for a variant",
                received=text,
                remedy=f"Variants: {', '.join(variants)}.",
            )
        try:
            found[name] = {
                metric: float(value)
                for metric, value in (
                    item.split("=", 1) for item in rest.split()
                )
            }
        except ValueError:
            raise UserError(
                "paper must be NAME: METRIC=VALUE ..., with numbers",
                received=text,
                remedy="Example: --paper='sop: masked_lm_accuracy=0.54'",
            ) from None
    return found
