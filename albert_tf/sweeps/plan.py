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
from typing import NamedTuple

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
    """A run of the sweep."""

    variant: str
    seed: int | None  # of --seeds
    run_dir: str
    flags: tuple[str, ...]  # of run_pretraining, without --output_dir
    config: PretrainingConfig
    starts_from: "PlannedRun | None" = None  # of the same seed
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
    """The checked settings of a sweep."""

    dir: str
    # By seed and then by variant, so that an interrupted sweep can compare all
    # variants early.
    runs: tuple[PlannedRun, ...]
    metrics: tuple[str, ...]  # columns of the table
    pairs: tuple[tuple[str, str], ...]  # to compare: first minus second

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in order."""
        return tuple(dict.fromkeys(run.variant for run in self.runs))


def make_plan(config: SweepConfig) -> Plan:
    """Makes the plan of a sweep; reads flag files and architectures only.

    Raises:
        UserError: For an unknown or invalid flag, or a variant that starts from
            none of the earlier ones.
    """
    if not config.variant:
        raise UserError(
            "--variant is required",
            remedy="Give it once per variant, or give a --flagfile of "
            "configs/ablations.",
        )
    base: list[str] = []
    for text in config.base_flags:
        base += _split(text, config.records_dir)
    variants = _named("variant", config.variant, config.records_dir)
    evaluations = _named("evaluation", config.evaluation, config.records_dir)
    sweep_dir = config.output_dir.rstrip("/")
    runs: list[PlannedRun] = []
    seeds: list[int | None] = [int(seed) for seed in config.seeds]
    for seed in seeds or [None]:
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
                all_flags = (*flags, "--mode=eval", *further)
                evaluated[other] = Evaluation(
                    all_flags,
                    _parse(f"evaluation {other} of {source}", all_flags),
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
    pairs = tuple(text.partition(":")[::2] for text in config.compare)
    return Plan(sweep_dir, tuple(runs), config.metrics, pairs)


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


def _split(text: str, records_dir: str) -> list[str]:
    """Splits flags, and fills in the directory of the records."""
    words = shlex.split(text)
    return [word.replace("{records_dir}", records_dir) for word in words]


def _named(
    setting: str, texts: Iterable[str], records_dir: str
) -> dict[str, list[str]]:
    """Parses `NAME: FLAGS`."""
    found = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()):
            raise UserError(
                f"{setting} must be NAME: FLAGS, with a name of letters, "
                "digits, _ and .",
                received=repr(text),
                remedy=f"Example: --{setting}='narrow: "
                "--model=embedding_size=64'",
            )
        found[name.strip()] = _split(rest, records_dir)
    return found


def _parse(source: str, arguments: Sequence[str]) -> PretrainingConfig:
    """Parses settings of run_pretraining; errors name their source."""
    try:
        return parse_line(PretrainingConfig, arguments)
    except (absl_flags.Error, UserError) as error:
        raise UserError(f"{source}: {error}") from None
