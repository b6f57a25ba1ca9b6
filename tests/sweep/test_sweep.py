import os
import pathlib
import sys

import pytest

from albert_tf import sweep
from albert_tf.config import SweepConfig
from albert_tf.errors import UserError
from albert_tf.runs.log import read_metrics
from tests.helpers import tiny_run
from tests.helpers.forked_program import ForkedProgram


def make_config(**changes):
    settings = {
        "base_flags": (
            "--albert_config_file=albert_base_v2 --input_file={records_dir}/*",
        ),
        "variant": ("narrow: --model=embedding_size=2", "long: --ngram=1"),
        "records_dir": "records",
    }
    return SweepConfig(**(settings | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": ()}, "--variant is required"),
        ({"variant": ("a: --no_such_flag=1",)}, "a: Unknown .* .no_such"),
        ({"variant": ("a: --beta_2=2",)}, "variant a: beta_2 must be below 1"),
        ({"variant": ("a: --model=width=3",)}, "variant a: .*width"),
        ({"variant": ("a: word",)}, "variant a: .*Received: word"),
        ({"variant": ("a/b: --beta_2=0.9",)}, "NAME: FLAGS"),
        ({"base_flags": ("--flagfile=none.flags",)}, "none.flags"),
        ({"seeds": ("1", "one")}, "seed.*one"),
    ],
)
def test_mistakes_are_found_before_a_run_starts(changes, message):
    with pytest.raises(UserError, match=message):
        sweep.make_runs(make_config(**changes))


def test_flags_of_a_variant_override_those_of_all_runs():
    runs = sweep.make_runs(make_config(seeds=("7", "3")))
    assert {
        run.name: (
            run.config.model.embedding_size,
            run.config.data.ngram,
            run.config.training.seed,
        )
        for run in runs
    } == {
        "narrow-seed7": (2, 3, 7),
        "long-seed7": (128, 1, 7),
        "narrow-seed3": (2, 3, 3),
        "long-seed3": (128, 1, 3),
    }
    assert runs[0].config.data.input_file == ("records/*",)


def test_the_table_has_means_and_deviations():
    """By hand: the deviation of 4 and 5 is sqrt(0.5)."""
    accuracy = "sentence_order_accuracy"
    results = {
        "sop": [
            {"masked_lm_loss": 4.0, accuracy: 0.70, "training_seconds": 2.0},
            {"masked_lm_loss": 5.0, accuracy: 0.74, "training_seconds": 4.0},
        ],
        "nsp": [{"masked_lm_loss": 9.0, "training_seconds": 3.0}],
        "none": [],
    }
    metrics = ["masked_lm_loss", accuracy, "training_seconds"]
    assert sweep.compare(results, metrics).splitlines() == [
        f"| variant | runs | masked_lm_loss | {accuracy} | training_seconds |",
        "| --- | --- | --- | --- | --- |",
        "| sop | 2 | 4.500 ± 0.707 | 72.0 ± 2.8 % | 3.000 ± 1.414 |",
        "| nsp | 1 | 9.000 | - | 3.000 |",
        "| none | 0 | - | - | - |",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_real_runs_are_trained_once_and_compared(
    tiny_records, tmp_path, monkeypatch, capsys
):
    """A variant that fails leaves the others, and its status."""

    def run_forked(name, command, log, output):
        """As `jobs.run`, without another import of TensorFlow."""
        python, dash_m, module, *flags = command
        assert (python, dash_m) == (sys.executable, "-m")
        program = ForkedProgram(module, flags, os.environ, pathlib.Path(log))
        return program.wait()

    monkeypatch.setattr(sweep.jobs, "run", run_forked)
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "unused",
        num_train_steps=2,
        max_eval_steps=1,
        optimizer="adamw",
        sentence_objective="none",
    )
    base = [
        flag
        for flag in tiny_run.as_flags(config, tmp_path / "model.json")
        if not flag.startswith(("--output_dir", "--seed"))
        and not flag.endswith("=")
    ]
    (tmp_path / "base.flags").write_text("\n".join(base))
    output_dir = tmp_path / "sweep"
    settings = SweepConfig(
        base_flags=(f"--flagfile={tmp_path}/base.flags",),
        variant=("broken: --eval_input_file=none", "good: --beta_2=0.9"),
        metrics=("masked_lm_loss", "training_seconds"),
        output_dir=str(output_dir),
    )
    good = settings.replace(variant=settings.variant[1:])
    for some, status in (settings, 1), (good, 0):
        assert sweep.main(some) == status
        text = (output_dir / "table.md").read_text()
        assert text in capsys.readouterr().out
        lines = list(read_metrics(str(output_dir / "runs/good")))
        assert sum(line["split"] == "eval" for line in lines) == 1
        assert ("| broken | 0 | - | - |" in text) == bool(status)
        assert f"| good | 1 | {lines[-1]['masked_lm_loss']:.3f} |" in text
