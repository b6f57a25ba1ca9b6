r"""Predict with an exported SavedModel, in this process or on a server.

    python -m albert_tf.export_saved_model \
      --run_dir=runs/sst2 --export_dir=export/sst2
    python -m albert_tf.predict --saved_model_dir=export/sst2 \
      --text='A film to remember.'

For a fine-tuned model, the command prints a JSON object for each text. Give
--text once per text.

Classification and regression, here of pairs: the label and the probability of
each label, or the value:

    --text='It rained.' --text_pair='The sun shone.'
    {"label": "contradiction", "probabilities": {"contradiction": 0.97, ...}}

Question answering: the answer, which is text[start:end]. `score` is the sum of
the logits of its first and last token, or with --squad_head=beam of their log
probabilities. The answer is "" if `null_odds` exceeds the null threshold of the
run:

    --text='Basel lies on the Rhine.' --question='Where is Basel?'
    {"answer": "on the Rhine", "end": 23, "null_odds": -6.1,
     "null_score": 0.2, "score": 6.3, "start": 11}

Embedding: `embedding`, and `normalized_embedding` of length 1.

Token classification: the words, their characters, and their tags:

    --text='It is in Bern.'
    {"begins": [0, ...], "ends": [2, ...], "probabilities": [0.99, ...],
     "tags": ["O", "O", "O", "B-LOC", "O"], "words": ["It", ...]}

Multiple choice: the best choice, its number from 0, and the probability of each
choice. There must be as many choices as in training:

    --text='Tom fell into the river.' --question='How is he?' \
      --choice=wet --choice=dry
    {"choice": "wet", "choice_number": 0, "probabilities": [0.98, 0.02]}

Give --question once per question; each is asked about each text.

A model that is only pretrained fills masks or, given --text_pair, prints the
probability that the second text follows the first:

    --text='She opened the door.' --text_pair='It was dark inside.'
    71.3% in order: She opened the door. | It was dark inside.

The command needs the SavedModel and tensorflow-text. With --server, it asks
TensorFlow Serving over REST instead, and needs neither; only question answering
still needs --saved_model_dir, a copy of the export:

    python -m albert_tf.predict --server=http://localhost:8501 \
      --text='Paris is the [MASK] of France.'
"""

from albert_tf.cluster import versions
from albert_tf.config import PredictConfig, flags
from albert_tf.serving.predict import (
    Client,
    LocalClient,
    RestClient,
    print_responses,
)


def main(config: PredictConfig) -> None:
    """Prints the answers of an exported model to the texts of the flags."""
    config.require("text")
    client: Client
    if config.server:
        client = RestClient(config.server, config.model_name)
    else:
        config.require("saved_model_dir")
        versions.import_tensorflow()
        client = LocalClient(config.saved_model_dir)
    print_responses(client, config, config.saved_model_dir)


if __name__ == "__main__":
    flags.run(main, PredictConfig)
