"""The runs of a sweep, made from its settings and checked before one starts.

A variant is a set of flags; a run is a variant with a seed. The flags of a run
are those of `base_flags`, the variant and the seed, in this order, so that
later ones override earlier ones.

In the flags of a variant, `--init_checkpoint={run:NAME}` is the run of the
earlier variant NAME with the same seed.
"""

import dataclasses
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags as absl_flags

from albert_tf.config import (
    PretrainingConfig,
    SweepConfig,
    flatten,
    settings_by_path,
)
from albert_tf.config.flags import parse_line
from albert_tf.errors import UserError

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

_NAME = re.compile(r"[A-Za-z0-9][\w.]*")

# Added to the seed for each run before a run, so that runs of the same length
# that continue each other read different batches.
_SEEDS_PER_STAGE = 1000


class Evaluation(NamedTuple):
    """A further evaluation of a run; its metrics are stored at `path`."""

    flags: tuple[str, ...]  # without --output_dir
    config: PretrainingConfig
    path: str


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep.

    Attributes:
        variant: Name of its variant.
        seed: Its seed in `--seeds`; None for that of its flags.
        run_dir: Its run directory.
        flags: Flags of run_pretraining, without --output_dir.
        config: The settings that they describe.
        starts_from: The run whose weights it starts from, of the same seed.
        evaluations: Its further evaluations, by name.
    """

    variant: str
    seed: int | None
    run_dir: str
    flags: tuple[str, ...]
    config: PretrainingConfig
    starts_from: "PlannedRun | None" = None
    evaluations: Mapping[str, Evaluation] = dataclasses.field(
        default_factory=dict
    )

    @property
    def name(self) -> str:
        """VARIANT-seedN, or VARIANT without seeds."""
        return posixpath.basename(self.run_dir)

    @property
    def stages(self) -> list["PlannedRun"]:
        """This run and the runs that it starts from, latest first."""
        return [self, *(self.starts_from.stages if self.starts_from else [])]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked settings of a sweep.

    Attributes:
        dir: Its directory, `--output_dir`.
        runs: The runs, ordered by seed and then by variant, so that an
            interrupted sweep can compare all variants early.
        metrics: Columns of the table.
        pairs: Variants to compare; the difference is first minus second.
        paper: Published values by variant and metric.
    """

    dir: str
    runs: tuple[PlannedRun, ...]
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
        UserError: For an unknown or invalid flag, a variant that is listed
            twice, names of variants and metrics that do not exist, or a variant
            that starts from none of the earlier ones.
    """
    if not config.variant:
        raise UserError(
            "--variant is required",
            remedy="Give it once per variant, or give a --flagfile of "
            "configs/ablations.",
        )
    base: list[str] = []
    for text in config.base_flags:
        base += _split("base_flags", text, config.records_dir)
    variants = _named("variant", config.variant, config.records_dir)
    evaluations = _named("evaluation", config.evaluation, config.records_dir)
    sweep_dir = config.output_dir.rstrip("/")
    runs: list[PlannedRun] = []
    for seed in _parse_seeds(config.seeds):
        of_seed: dict[str, PlannedRun] = {}
        for name, own in variants.items():
            run_name = name if seed is None else f"{name}-seed{seed}"
            source = f"variant {name}"
            flags = [*base, *own]
            start = _find_start(source, _parse(source, flags), of_seed)
            if start:
                flags.append(f"--init_checkpoint={start.run_dir}")
            if seed is not None:
                earlier = len(start.stages) if start else 0
                flags.append(f"--seed={seed + _SEEDS_PER_STAGE * earlier}")
            evaluated = {}
            for other, further in evaluations.items():
                own_flags = (*flags, "--mode=eval", *further)
                evaluated[other] = Evaluation(
                    own_flags,
                    _parse(
                        f"evaluation {other} of {source}", own_flags, "eval"
                    ),
                    f"{sweep_dir}/evaluations/{run_name}/{other}.json",
                )
            of_seed[name] = PlannedRun(
                name,
                seed,
                posixpath.join(sweep_dir, RUNS_DIR, run_name),
                tuple(flags),
                _parse(source, flags),
                start,
                evaluated,
            )
        runs += of_seed.values()
    known = [
        *EVALUATION_METRICS,
        *TRAINING_TOTALS,
        *(f"{e}/{m}" for e in evaluations for m in EVALUATION_METRICS),
    ]
    for metric in config.metrics:
        if metric not in known:
            raise UserError(
                "metrics must be metrics of the runs",
                received=metric,
                remedy=f"Known: {', '.join(known)}.",
            )
    return Plan(
        sweep_dir,
        tuple(runs),
        config.metrics,
        _parse_pairs(config.compare, variants),
        _parse_paper(config.paper, variants),
    )


def describe(plan: Plan) -> list[str]:
    """Describes the runs: for each, the settings that differ between runs."""
    flat = {run.name: flatten(run.config.to_dict()) for run in plan.runs}
    differ = [
        name
        for name in settings_by_path(PretrainingConfig)
        if len({str(values[name]) for values in flat.values()}) > 1
    ]
    return [
        f"{run}: "
        + ", ".join(f"{n.split('.')[-1]}={values[n]}" for n in differ)
        for run, values in flat.items()
    ]


def _find_start(
    source: str, config: PretrainingConfig, earlier: Mapping[str, PlannedRun]
) -> PlannedRun | None:
    """Finds the run that `--init_checkpoint={run:NAME}` names, if it does."""
    value = config.initialization.init_checkpoint
    if "{run:" not in value:
        return None
    name = value.removeprefix("{run:").removesuffix("}")
    if value != f"{{run:{name}}}" or name not in earlier:
        names = ", ".join(earlier) or "none; list the variant before this one"
        raise UserError(
            f"init_checkpoint of {source} must be a path or {{run:NAME}}, "
            "where NAME is an earlier variant",
            received=value,
            remedy=f"Earlier variants: {names}.",
        )
    return earlier[name]


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


def _parse(
    source: str, arguments: Sequence[str], mode: str = "train"
) -> PretrainingConfig:
    """Parses settings of run_pretraining; errors name their source."""
    try:
        config = parse_line(PretrainingConfig, arguments)
    except (absl_flags.Error, UserError) as error:
        raise UserError(f"{source}: {error}") from None
    training = config.training
    if training.output_dir or training.mode != mode or training.dry_run:
        raise UserError(
            f"{source} must not set --output_dir, --mode and --dry_run: the "
            "sweep sets them",
            received=" ".join(arguments),
        )
    return config


def _parse_seeds(seeds: Sequence[str]) -> list[int | None]:
    if not seeds:
        return [None]
    if len({int(s) for s in seeds if s.isdecimal()}) < len(seeds):
        raise UserError(
            "seeds must be different whole numbers",
            received=",".join(seeds),
            remedy="Example: --seeds=1,2",
        )
    return [int(seed) for seed in seeds]


def _parse_pairs(
    texts: Sequence[str], variants: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        first, _, second = text.partition(":")
        if first == second or not {first, second} <= {*variants}:
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
        try:
            pairs = [item.split("=", 1) for item in rest.split()]
            values = {metric: float(value) for metric, value in pairs}
        except ValueError:
            values = {}
        if not values or name not in variants or name in found:
            raise UserError(
                "paper must be NAME: METRIC=VALUE ..., with numbers, once for "
                "a variant",
                received=text,
                remedy=f"Variants: {', '.join(variants)}.",
            )
        found[name] = values
    return found
