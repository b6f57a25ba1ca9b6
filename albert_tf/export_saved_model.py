r"""Export a trained run as a SavedModel with serving signatures.

    python -m albert_tf.export_saved_model \
      --run_dir=runs/base --export_dir=export/albert/1

It exports the newest checkpoint. To export the best one, give the step in the
name of its directory, e.g. --checkpoint_step=900 for best/step-00000900.

With `--format=litert`, it writes models for phones instead: docs/edge.md.

Signatures take text, or ids, as `serving_default` does. docs/serving.md has
their inputs and outputs.

    pretrained model        encode, fill_mask, embed, and sentence_order or
                            next_sentence
    classification          classify
    regression              predict_value
    multiple choice         choose
    token classification    tag
    question answering      score_spans, of ids only

Those that take text end in _text, or _text_pair for pairs. They need
tensorflow-text; `--notext_signatures` exports without it.
"""

from albert_tf.cluster import versions
from albert_tf.config import ExportConfig, FinetuningConfig, flags
from albert_tf.config.task import CLASSIFICATION
from albert_tf.errors import UserError
from albert_tf.serving.verification import Text


def main(config: ExportConfig) -> None:
    """Exports the run that the flags name."""
    config.require("run_dir", "export_dir")
    versions.import_tensorflow()
    if config.format == "litert":
        from albert_tf.serving import litert

        litert.export(config, read_texts(config))
        return
    from albert_tf.serving.export import export

    export(config, read_texts(config) if config.text_file else [])


def read_texts(config: ExportConfig) -> list[Text]:
    """The texts of `text_file`, with labels if it is a file of examples."""
    from albert_tf.finetuning.examples import read_examples, read_text
    from albert_tf.finetuning.run import task_of_run
    from albert_tf.finetuning.tasks import DEV, find_task
    from albert_tf.runs.directory import load_config

    path, run = config.text_file, load_config(config.run_dir)
    texts: list[Text] = []
    if path.endswith((".csv", ".tsv", ".jsonl", ".json")):
        if (
            not isinstance(run, FinetuningConfig)
            or run.head.kind != CLASSIFICATION
        ):
            raise UserError(
                "text_file must be plain text for a model that does not "
                "classify, with a text in each line",
                received=path,
            )
        run = run.replace(dev_file=path, output_dir=config.run_dir)
        if not run.task.task:  # a converted run
            run = run.replace(task=run.head.kind)
        task = task_of_run(run, find_task(run.task))
        examples = read_examples(run.task, DEV, task).examples
        texts = [Text(e.text, e.text_pair, e.label) for e in examples]
    else:
        lines = map(str.strip, read_text(path).splitlines())
        texts = [Text(line) for line in lines if line]
    if not texts:
        raise UserError("text_file must contain text", received=path)
    return texts[: config.max_texts]


if __name__ == "__main__":
    flags.run(main, ExportConfig)
