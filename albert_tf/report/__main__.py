r"""Draw the learning curves of runs as a picture.

    python -m albert_tf.report \
      --run_dirs=runs/base,runs/base_no_dropout --output_file=build/curves.png

The picture has panels for losses, accuracies, learning rate, norms and speed,
in training and evaluation; --metrics selects some of them. It marks the steps
at which a run was restarted, rolled back, or changed dropout or data.
"""

from albert_tf.cluster import versions
from albert_tf.config import ReportConfig, flags


def main(config: ReportConfig) -> None:
    """Draws the runs that the flags name."""
    config.require("run_dirs", "output_file")
    versions.import_tensorflow()
    from albert_tf.io.files import write_bytes
    from albert_tf.report.curves import picture
    from albert_tf.report.runs import read_runs

    runs = read_runs(config.run_dirs)
    write_bytes(config.output_file, picture(runs, config.metrics))
    for run in runs:
        held_out = {m: c[-1] for (s, m), c in run.curves.items() if s == "eval"}
        scores = [
            f"{name} {value:.4g}" for name, (_, value) in held_out.items()
        ]
        step = max((int(step) for step, _ in held_out.values()), default=0)
        text = f"step {step}, held-out set: {', '.join(scores)}"
        print(f"{run.run_dir}, {text if scores else 'not evaluated yet'}")
    print(f"curves: {config.output_file}")


if __name__ == "__main__":
    flags.run(main, ReportConfig)
