r"""Export a trained run as a SavedModel with serving signatures.

    python -m albert_tf.export_saved_model \
      --run_dir=runs/base --export_dir=export/albert/1

It exports the newest checkpoint. To export the best one, give the step in the
name of its directory, e.g. --checkpoint_step=900 for best/step-00000900.

With `--format=litert`, it writes a model for phones instead: docs/edge.md.

docs/serving.md has the signatures of each kind of model, with their inputs and
outputs. All kinds take ids, and all but question answering text.
Those that take text end in _text, or _text_pair for pairs. They need
tensorflow-text; `--notext_signatures` exports without it.
"""

from albert_tf.cluster import versions
from albert_tf.config import ExportConfig, flags
from albert_tf.errors import UserError
from albert_tf.io import shipped

_MAX_TEXTS = 100  # of `text_file`


def main(config: ExportConfig) -> None:
    """Exports the run that the flags name."""
    config.require("run_dir", "export_dir")
    run_dir = shipped.in_first_model(config.run_dir, "model")
    config = config.replace(run_dir=run_dir)
    versions.import_tensorflow()
    if config.format == "litert":
        from albert_tf.serving import litert

        litert.export(config, read_texts(config))
        return
    from albert_tf.serving.export import export

    export(config)


def read_texts(config: ExportConfig) -> list[str]:
    """The lines of `text_file` that are not empty."""
    from albert_tf.finetuning.examples import read_text

    lines = map(str.strip, read_text(config.text_file).splitlines())
    texts = [line for line in lines if line]
    if not texts:
        raise UserError(
            "text_file must contain text", received=config.text_file
        )
    return texts[:_MAX_TEXTS]


if __name__ == "__main__":
    flags.run(main, ExportConfig)
