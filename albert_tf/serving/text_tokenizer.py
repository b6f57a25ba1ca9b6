"""Text -> ids inside a TensorFlow graph, equal to `tokenization.Tokenizer`.

A SavedModel that holds a `TextTokenizer` takes strings wherever TensorFlow and
the operations of tensorflow-text run.

The ids equal those of `Tokenizer`, except that three versions of Unicode treat
a few characters of google-research/albert differently: `Tokenizer` has that of
Python (14.0 in 3.11); the graph decomposes by that of tensorflow-text (16.0 in
2.21), and lower-cases by that of TensorFlow (13.0 in 2.21). So newer characters
become plain letters: U+1CCD6-U+1CCF9, outlined Latin; U+1E030-U+1E06D, raised
Cyrillic; and three dozen letters of rare scripts. The capitals U+2C2F, U+A7C0,
U+A7D0, U+A7D6, U+A7D8 and U+10570-U+10595 do not change.
"""

import importlib
import unicodedata
from types import ModuleType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError, first_line
from albert_tf.io.files import open_existing
from albert_tf.records.features import CLS_ID, MASK_ID, PAD_ID, SEP_ID, UNK_ID
from albert_tf.records.gaps import GAP, gap_rules
from albert_tf.records.tokenization import (
    GOOGLE_ALBERT,
    MASK_PIECE,
    WORD_MARK,
    Tokenizer,
    character_class,
)

_UNKNOWN = "\ue000"  # a private-use character: in no vocabulary
_DROPPED = -1  # in a table of ids: the token is removed


def import_text_ops() -> ModuleType:
    """Imports tensorflow-text, which registers its operations.

    Raises:
        UserError: If it is missing or built for another TensorFlow.
    """
    try:
        return importlib.import_module("tensorflow_text")
    except (ImportError, tf.errors.NotFoundError) as error:
        major, minor = tf.__version__.split(".")[:2]
        raise UserError(
            f"tensorflow-text {major}.{minor} must be installed for models "
            "that take text",
            received=first_line(error),
            remedy=f"pip install 'tensorflow-text=={major}.{minor}.*'; "
            "on a TPU VM with --no-deps.",
        ) from None


class TextTokenizer(tf.Module):
    """`Tokenizer(model_file, do_lower_case)` as TensorFlow operations."""

    def __init__(
        self, model_file: str, do_lower_case: bool | None = None
    ) -> None:
        super().__init__(name="text_tokenizer")
        self._text_ops = import_text_ops()
        tokenizer = Tokenizer(model_file, do_lower_case)
        with open_existing(model_file, "rb") as file:
            # Not FastSentencepieceTokenizer: it breaks ties of equal scores
            # like sentencepiece 0.2.2, and splits white space differently.
            self._model = self._text_ops.SentencepieceTokenizer(file.read())
        self.is_google_albert = tokenizer.kind == GOOGLE_ALBERT
        self._do_lower_case = tokenizer.do_lower_case
        self._keep_accents = tokenizer.keep_accents
        self._white_space = character_class(str.isspace)
        self._combining = character_class(unicodedata.combining)

        pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
        self._pieces = tf.constant(pieces)
        self._without_word_mark = tf.constant(_unmark(pieces))
        if self.is_google_albert:
            # For each piece, the ids of the parts that `split_commas` makes.
            parts = [
                [part for part, _, _ in tokenizer.split_comma(i, 0, 1)]
                for i in range(len(pieces))
            ]
            self._parts = tf.ragged.constant(parts, tf.int32)

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes raw texts; "[MASK]" is ordinary text here.

        Args:
            texts: string, `(batch,)`, UTF-8; other bytes become U+FFFD.

        Returns:
            int32, `(batch, tokens)`.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        if not self.is_google_albert:
            return self._model.tokenize(texts)
        ids = self._model.tokenize(self.normalize(texts))
        return tf.gather(self._parts, ids).merge_dims(1, 2)

    def encode_with_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes raw texts in which "[MASK]" is the mask token."""
        parts = tf.strings.split(texts, sep=MASK_PIECE)
        part_ids = self.encode(parts.flat_values)
        is_behind_mask = tf.ragged.range(parts.row_lengths()).values > 0
        # SentencePiece begins a word at the start of every text. After a mask,
        # however, a word begins only after white space.
        continues = is_behind_mask & ~tf.strings.regex_full_match(
            parts.values, rf"(?s){self._white_space}.*"
        )
        is_first = tf.ragged.range(part_ids.row_lengths()).values == 0
        ids = tf.where(
            is_first & tf.gather(continues, part_ids.value_rowids()),
            tf.gather(self._without_word_mark, part_ids.values),
            part_ids.values,
        )
        part_ids = part_ids.with_values(ids)
        part_ids = tf.ragged.boolean_mask(part_ids, part_ids != _DROPPED)

        masks = tf.RaggedTensor.from_row_lengths(
            tf.repeat(MASK_ID, tf.math.count_nonzero(is_behind_mask)),
            tf.cast(is_behind_mask, tf.int64),
        )
        part_ids = tf.concat([masks, part_ids], axis=1)
        return parts.with_values(part_ids).merge_dims(1, 2)

    def split_words(
        self, texts: tf.Tensor, pattern: str
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Finds the words of texts.

        Args:
            texts: string, `(batch,)`, UTF-8; other bytes become U+FFFD, and
                NUL a space.
            pattern: A regular expression of RE2 for a word.

        Returns:
            The words, string, and their first characters and ends, int32, each
            `(batch, words)`.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        # The operation that splits ends a text at a NUL.
        texts = tf.strings.regex_replace(texts, r"\x00", " ")
        # What is between two words is a part of its own, without a word in it.
        words, begins, ends = self._text_ops.regex_split_with_offsets(
            texts, pattern, pattern
        )
        is_word = tf.strings.regex_full_match(words.flat_values, pattern)
        kept = words.with_values(is_word)
        words, begins, ends = (
            tf.ragged.boolean_mask(values, kept)
            for values in (words, begins, ends)
        )
        of_words = tf.gather(texts, words.value_rowids())

        def characters(offsets: tf.RaggedTensor) -> tf.RaggedTensor:
            sizes = tf.cast(offsets.values, tf.int32)
            before = tf.strings.substr(of_words, tf.zeros_like(sizes), sizes)
            count = tf.strings.length(before, unit="UTF8_CHAR")
            return offsets.with_values(count)

        return words, characters(begins), characters(ends)

    def spell(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the spellings of pieces: string, in the shape of `ids`."""
        return tf.gather(self._pieces, ids)

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """As `tokenization.normalize`: string, `(batch,)`, in valid UTF-8."""
        texts = tf.strings.regex_replace(texts, f"{self._white_space}+", " ")
        texts = tf.strings.strip(texts)
        if self._keep_accents:
            texts = self._text_ops.normalize_utf8(texts, "NFKC")
        else:
            texts = self._text_ops.normalize_utf8(texts, "NFKD")
            texts = tf.strings.regex_replace(texts, self._combining, "")
        if self._do_lower_case:
            # `lower` with an encoding ends a text at a NUL.
            texts = tf.strings.regex_replace(texts, r"\x00", _UNKNOWN)
            # ASCII first: `lower` with an encoding follows the locale, and a
            # Turkish server would turn I into a dotless i.
            texts = tf.strings.lower(texts)
            texts = tf.strings.lower(texts, encoding="utf-8")
        return texts


class PackedTexts(NamedTuple):
    """Texts as inputs of the model, int32, `(batch, length)`.

    The length is that of the longest text, or 1 without texts. Padding holds
    `<pad>`, 0 and 0.
    """

    input_ids: tf.Tensor
    input_mask: tf.Tensor
    segment_ids: tf.Tensor


def pack(
    max_length: int,
    first: tf.RaggedTensor,
    second: tf.RaggedTensor | None = None,
) -> PackedTexts:
    """Makes `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    A text that is too long loses its end. Of a pair, the longer text is cut
    until both have the same length, then both are cut in turn, the second
    first.

    Args:
        max_length: Largest number of tokens, `[CLS]` and `[SEP]` included.
        first, second: int32, `(batch, tokens)`.
    """
    if second is None:
        segments = [cut(first, tf.constant(max_length - 2, tf.int64))]
    else:
        tokens = max_length - 3
        kept = tf.maximum(tokens - second.row_lengths(), (tokens + 1) // 2)
        first = cut(first, kept)
        segments = [first, cut(second, tokens - first.row_lengths())]
    return join_segments(segments)


def pack_choices(
    contexts: tf.RaggedTensor,
    choices: tf.RaggedTensor,
    max_choice_length: int,
    max_length: int,
) -> PackedTexts:
    """As `tokenization.cut_choices` and `make_inputs`, in the graph.

    Args:
        contexts: int32, `(batch, tokens)`.
        choices: int32, `(batch * num_choices, tokens)`.

    Returns:
        Rows for the choices.
    """
    room = max_length - 3
    choices = choices[:, -min(max_choice_length, room) :]
    num_choices = choices.nrows() // tf.maximum(contexts.nrows(), 1)
    rows = tf.repeat(tf.range(contexts.nrows()), num_choices)
    first = cut(tf.gather(contexts, rows), room - choices.row_lengths())
    return join_segments([first, choices])


def first_tokens(
    num_tokens: tf.Tensor, max_length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `tokenization.first_tokens`, for a batch: `(batch, words)`."""
    positions = tf.cumsum(num_tokens, axis=1, exclusive=True) + 1
    return positions, (num_tokens > 0) & (positions < max_length - 1)


def join_segments(segments: list[tf.RaggedTensor]) -> PackedTexts:
    """Joins one or two segments, int32, `(batch, tokens)`; see `pack`."""
    batch = segments[0].nrows()
    cls_ids, sep_ids = (
        tf.RaggedTensor.from_tensor(tf.fill([batch, 1], piece_id))
        for piece_id in (CLS_ID, SEP_ID)
    )
    segments = [tf.concat([segment, sep_ids], 1) for segment in segments]
    segments[0] = tf.concat([cls_ids, segments[0]], 1)
    input_ids = tf.concat(segments, 1)
    segment_ids = tf.concat(
        [ids * 0 + number for number, ids in enumerate(segments)], 1
    )
    # The model needs a position even if there are no rows.
    length = tf.maximum(input_ids.bounding_shape()[1], 1)
    return PackedTexts(
        input_ids.to_tensor(PAD_ID, shape=[-1, length]),
        tf.ones_like(input_ids).to_tensor(0, shape=[-1, length]),
        segment_ids.to_tensor(0, shape=[-1, length]),
    )


def cut(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first tokens of each row; `lengths` is `(batch,)` or `()`."""
    begins = ids.row_starts()
    kept = tf.ragged.range(
        begins, begins + tf.minimum(ids.row_lengths(), lengths)
    )
    return kept.with_values(tf.gather(ids.values, kept.values))


def _unmark(pieces: list[str]) -> np.ndarray:
    """Ids of the pieces without word mark; `_DROPPED` if nothing remains."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    unmarked = np.arange(len(pieces), dtype=np.int32)
    for i, piece in enumerate(pieces):
        if piece.startswith(WORD_MARK):
            rest = piece[len(WORD_MARK) :]
            unmarked[i] = ids.get(rest, UNK_ID) if rest else _DROPPED
    return unmarked


def fill_gaps(questions: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """As `records.gaps.fill_gaps`, in the graph.

    Args:
        questions: string, `(batch,)`.
        choices: string, `(batch, num_choices)`.

    Returns:
        The second text of each choice, string, `(batch, num_choices)`.
    """
    num_choices = choices.shape[1]
    marked = questions
    for pattern, replacement in gap_rules(r"\pL\pN"):
        marked = tf.strings.regex_replace(marked, pattern, replacement)
    parts = tf.strings.split(tf.repeat(marked, num_choices), sep=GAP)
    flat = tf.gather(tf.reshape(choices, [-1]), parts.value_rowids())
    is_first = tf.ragged.range(parts.row_lengths()).values == 0
    filled = parts.with_values(tf.where(is_first, "", flat) + parts.values)
    return tf.where(
        tf.strings.regex_full_match(marked, f"(?s).*{GAP}.*")[:, tf.newaxis],
        tf.reshape(
            tf.strings.unsorted_segment_join(
                filled.values, filled.value_rowids(), filled.nrows()
            ),
            tf.shape(choices),
        ),
        questions[:, tf.newaxis] + " " + choices,
    )
