r"""Export a trained run as a SavedModel with serving signatures.

    python -m albert_tf.export_saved_model \
      --run_dir=build/demo/run --export_dir=build/demo/saved_model

It exports the newest checkpoint. To export the best one, give the step in the
name of its directory, e.g. --checkpoint_step=900 for best/step-00000900.

With `--format=litert`, it writes models for phones instead: docs/edge.md.

The model of a run of pretraining has these signatures; those of fine-tuned
models follow below.

Signatures that take text. Inputs are UTF-8 strings `text` and, for a pair,
`text_pair`, both `(batch,)`. The graph tokenizes them.

    encode_text         -> sequence_output: float32, (batch, length, H)
    encode_text_pair       pooled_output: float32, (batch, H)
                           input_ids, input_mask: int32, (batch, length)
    embed_text          -> embedding: float32, (batch, H)
                           normalized_embedding: the same, of length 1
    fill_mask_text      -> top_pieces: string, (batch, masks, top_k)
                           top_probabilities: float32, (batch, masks, top_k)
    sentence_order_text_pair
                        -> in_order, swapped: float32, (batch,), probabilities

An embedding is the mean of `sequence_output` over the tokens of a text. To
compare texts by their meaning, use it, not `pooled_output`, which is trained to
tell the order of passages.

`length` is the number of tokens of the longest text of the batch, at most the
`max_seq_length` of the run. Tokens beyond it are cut off; of a pair, the longer
text is cut first. `masks` is the largest number of [MASK] in a text of the
batch. Where a text has fewer masks, or a mask was cut off, the outputs are ""
and 0. "[MASK]" is the mask token only in `fill_mask_text`; in other signatures
it is ordinary text.

Signatures for callers with a tokenizer. Inputs are ids, int32, of any batch
size and any length up to `max_position_embeddings`. Outputs are float32,
except for ids.

    encode          input_ids, input_mask, segment_ids: (batch, length)
                    -> sequence_output, pooled_output, as above
    serving_default the same
    embed           the same -> embedding, normalized_embedding, as above
    fill_mask       the same, and masked_lm_positions: (batch, predictions)
                    -> top_ids: int32, (batch, predictions, top_k)
                       top_log_probabilities: (batch, predictions, top_k)
    sentence_order  input_ids, input_mask, segment_ids: (batch, length)
                    -> in_order, swapped, as above

The model of a run with `--sentence_objective=nsp` has the signature
`next_sentence` (outputs: next, random) instead of `sentence_order`. With
`--sentence_objective=none`, it has neither of them, and no pooled_output.

The model of a run of fine-tuning has other signatures; `serving_default` is the
one that takes ids. For classification:

    classify_text, classify_text_pair
                    -> label: string, (batch,)
                       labels: string, (batch, classes)
                       probabilities: float32, (batch, classes)
    classify        the same, from input_ids, input_mask, segment_ids

With `--labels_are_lists`, there is no `label`, and each probability is that of
a class to apply, whatever the others are.

For regression:

    predict_value_text, predict_value_text_pair, predict_value
                    -> value: float32, (batch,)

Of the two signatures that take text, a run of pairs has only the one for pairs,
and a run of single texts only the other one. A converted run, whose texts are
unknown, has both.

For multiple choice, `question` and `context` are (batch,), and `choices` are
(batch, choices), with as many choices as in training:

    choose_text     question, context, choices
                    -> choice: string, (batch,)
                       choice_number: int32, (batch,), from 0
                       probabilities: float32, (batch, choices)
    choose          input_ids, input_mask, segment_ids: (batch, choices, length)
                    -> choice_number, probabilities

For embedding, `embed_text` and `embed`, as above.

For token classification:

    tag_text        -> words: string, (batch, words)
                       begins, ends: int32, of their characters in the text
                       tags: string, and their probabilities: float32
    tag_words       the same from words: string, (batch, words), padded with
                    "", without begins and ends
    tag             the same for tokens, from input_ids, input_mask, segment_ids
                    -> tags, probabilities: (batch, length)

All are (batch, words), padded with "" and 0. A word has the tag of its first
token; beyond the length, the tag "" and the probability 0. In `tag_text`, words
are letters and digits with single marks in between, as in "3.5", and all other
characters but white space. Use `tag_words` for the words of another tokenizer.

For question answering:

    score_spans     input_ids, input_mask, segment_ids: (batch, length)
                    -> start_logits, end_logits: float32, (batch, length);
                       with --squad_head=beam, p_mask is a further input, and
                       the outputs are those of
                       `modeling.heads.BeamSpanHead`

It scores the tokens of `[CLS] question [SEP] window [SEP]`. The client cuts a
long text into such windows and finds the best answer in the scores of all, as
run_finetuning does with --mode=predict. `albert_tf.predict` does this with the
vocabulary and the settings `question_answering` of `serving.json`, below.

Text signatures need tensorflow-text, for the export and in each Python program
that loads the model; TensorFlow Serving has it built in. On a TPU VM, install
it by `pip install --no-deps tensorflow-text==2.20.*`: with dependencies, pip
would install a second TensorFlow. `--notext_signatures` exports without it.

The directory `assets.extra/` of the SavedModel contains the vocabulary
(`spiece.model`), the architecture (`albert_config.json`), and the settings of
tokenization and of answers that a caller needs (`serving.json`).
docs/serving.md shows how to serve the model.
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
