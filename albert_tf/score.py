r"""Score lines of text by a masked language model.

    python -m albert_tf.score \
      --model=albert_mini_en --input_file=lines.txt --output_file=scores.jsonl

writes a JSON object for each line that is not empty, or prints it:

    {"text": "The dog barks.", "log_likelihood": -29.14, "tokens": 6,
     "nats_per_token": 4.86, "worst": [["▁dog", 8.6], ...], "cut_tokens": 0}

`log_likelihood` is the sum over the tokens of the log probability of each while
it is masked together with the rest of its word, whose end would give it away
(word-l2r); with --plain, while it is masked alone. `worst` has the least
probable tokens. Many nats a token mean a line unlike the training text, e.g. a
rare line of a log. A line of n tokens costs the model n sequences; of a long
line, only the first tokens are scored. Memory is bounded.

Reference:
    Plain: [Salazar et al., 2020](https://arxiv.org/abs/1910.14659); word-l2r:
    [Kauf and Ivanova, 2023](https://arxiv.org/abs/2305.10588).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from albert_tf.cluster import versions
from albert_tf.config import ScoreConfig, flags
from albert_tf.errors import UserError
from albert_tf.predict import read_plain, write_answers
from albert_tf.records.features import MASK_ID
from albert_tf.records.tokenization import Tokenizer, make_inputs

_BATCH_TOKENS = 16_384  # of masked sequences
_NUM_WORST = 5


def main(config: ScoreConfig) -> None:
    """Writes or prints the scores of the lines of a file."""
    config.require("model", "input_file")
    num_lines = sum(1 for _ in read_plain(config.input_file))
    if not num_lines:
        raise UserError(f"{config.input_file} must have text", received="none")
    versions.import_tensorflow()
    from albert_tf.interop.formats import load
    from albert_tf.modeling.models import AlbertPretrainer

    model, tokenizer = load(config.model)
    if not isinstance(model, AlbertPretrainer):
        raise UserError("model must fill masks", f"{config.model}, fine-tuned")
    program = _compile(model)
    max_length = model.max_seq_length - 2  # [CLS] and [SEP]

    def score_part(part: list[tuple[str, dict[str, Any]]]) -> Iterator[Any]:
        texts = [row["text"] for _, row in part]
        encoded = tokenizer.encode_batch(texts)
        all_tokens = np.split(encoded.ids, encoded.ends[:-1])
        tokens = [ids[:max_length] for ids in all_tokens]
        ends = [_mask_ends(tokenizer, ids, config.plain) for ids in tokens]
        found = _nats(program, tokens, ends)
        for text, ids, nats in zip(texts, all_tokens, found, strict=True):
            worst = np.argsort(-nats, kind="stable")[:_NUM_WORST]
            pieces = [tokenizer.id_to_piece(int(ids[i])) for i in worst]
            yield {
                "text": text,
                "log_likelihood": -float(nats.sum()),
                "tokens": len(nats),
                "nats_per_token": float(nats.sum() / max(len(nats), 1)),
                "worst": list(zip(pieces, nats[worst].tolist(), strict=True)),
                "cut_tokens": len(ids) - len(nats),
            }

    rows = read_plain(config.input_file)
    write_answers(rows, num_lines, score_part, config.output_file)


def _mask_ends(
    tokenizer: Tokenizer, ids: np.ndarray, plain: bool
) -> np.ndarray:
    """Where the mask of each token ends: after it, or after its word."""
    numbers = np.arange(len(ids))
    if plain or not len(ids):
        return numbers + 1
    opens_word = tokenizer.words.find(ids)
    opens_word[0] = True
    words = np.append(np.flatnonzero(opens_word), len(ids))
    return words[np.searchsorted(words, numbers, side="right")]


def _nats(
    program: Any, tokens: Sequence[np.ndarray], ends: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Negative log probabilities of the tokens of texts; float64."""
    nats = [np.zeros(len(ids)) for ids in tokens]
    for length in {len(ids) for ids in tokens} - {0}:
        lines = [i for i, ids in enumerate(tokens) if len(ids) == length]
        found = _nats_of_length(
            program,
            np.array([tokens[i] for i in lines]),
            np.array([ends[i] for i in lines]),
        )
        for i, values in zip(lines, found, strict=True):
            nats[i][:] = values
    return nats


def _nats_of_length(
    program: Any, ids: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """`_nats` of texts of equal length; all are `(texts, length)`."""
    sequences = make_inputs(ids.tolist()).input_ids
    columns = np.arange(sequences.shape[1])
    batch_size = max(1, _BATCH_TOKENS // len(columns))
    parts = []
    for first in range(0, ids.size, batch_size):
        rows = np.arange(first, min(first + batch_size, ids.size))
        lines, tokens = np.divmod(rows, ids.shape[1])
        begins = tokens[:, np.newaxis] + 1  # [CLS] is at position 0
        stops = ends[lines, tokens][:, np.newaxis] + 1
        is_masked = (columns >= begins) & (columns < stops)
        targets = ids[lines, tokens][:, np.newaxis]
        inputs = np.where(is_masked, MASK_ID, sequences[lines])
        parts.append(program(inputs, begins.astype(np.int32), targets).numpy())
    return np.concatenate(parts).reshape(ids.shape)


def _compile(model: Any) -> Any:
    """A program: ids, positions and ids there -> nats, `(batch, 1)`."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3)
    def program(
        ids: tf.Tensor, positions: tf.Tensor, targets: tf.Tensor
    ) -> tf.Tensor:
        batch = {
            "input_ids": ids,
            "input_mask": tf.ones_like(ids),
            "segment_ids": tf.zeros_like(ids),
            "masked_lm_positions": positions,
        }
        logits = model(batch)["mlm_logits"]
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)

    return program


if __name__ == "__main__":
    flags.run(main, ScoreConfig)
