"""Text -> ids of SentencePiece pieces, as google-research/albert has them.

The text is normalised before the model sees it, and pieces such as "2011,"
are split once more; both decide which ids a published checkpoint knows.
"""

import itertools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece

from albert_tf.errors import UserError
from albert_tf.features import MASK_ID, SPECIAL_PIECES, sha256_of
from albert_tf.files import open_existing

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
MASK_PIECE = SPECIAL_PIECES[MASK_ID]

# First and last characters of the scripts written without spaces.
_UNSPACED_SCRIPTS = (
    ("\u0e00", "\u0eff"),  # Thai, Lao
    ("\u1000", "\u109f"),  # Myanmar
    ("\u1780", "\u17ff"),  # Khmer
    ("\u2e80", "\u2fdf"),  # Han radicals
    ("\u3005", "\u3007"),  # Han iteration mark, closing mark, zero
    ("\u3021", "\u3029"),  # Han numerals
    ("\u3040", "\u30ff"),  # Hiragana, Katakana
    ("\u31f0", "\u31ff"),  # Katakana, phonetic extensions
    ("\u3400", "\u4dbf"),  # Han, extension A
    ("\u4e00", "\u9fff"),  # Han
    ("\ua9e0", "\ua9ff"),  # Myanmar, extension B
    ("\uaa60", "\uaa7f"),  # Myanmar, extension A
    ("\uf900", "\ufaff"),  # Han, compatibility
    ("\U00020000", "\U000323af"),  # Han, extensions B to H
)


class EncodedTexts(NamedTuple):
    """Several texts as pieces, one after another.

    Attributes:
        ids: int32, `(pieces,)`, of all texts.
        word_starts: bool, `(pieces,)`; True where a word begins.
        ends: int64, `(texts,)`, index behind the last piece of each text.
    """

    ids: np.ndarray
    word_starts: np.ndarray
    ends: np.ndarray


def normalize(text: str, do_lower_case: bool = True) -> str:
    """Text as the SentencePiece model is to see it.

    White space is collapsed and stripped, characters are decomposed (NFKD),
    combining marks dropped, letters made lower-case.
    """
    text = " ".join(text.split())
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if do_lower_case else text


class Tokenizer:
    """A SentencePiece vocabulary with the special ids of the published one.

    Args:
        model_file: The SentencePiece model, local or gs://.
        do_lower_case: Whether text is lower-cased; as the model was trained.

    Attributes:
        vocab_size: Number of pieces.
        kind: "published": text is normalised before the model sees it.
        sha256: Hexadecimal digest of the model file.
        starts_word: bool, `(vocab_size,)`; the pieces that begin a word.

    Raises:
        UserError: If the file is missing, is no SentencePiece model, or has
            other special ids.
    """

    def __init__(self, model_file: str, do_lower_case: bool = True) -> None:
        content = _read_model(model_file)
        self.do_lower_case = do_lower_case
        self.kind = "published"
        self.sha256 = sha256_of(content)
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.load_from_serialized_proto(content)
        except RuntimeError:
            raise UserError(
                f"{model_file} must be a SentencePiece model",
                received=f"{len(content)} bytes of something else",
            ) from None
        self.vocab_size: int = self._model.vocab_size()
        self._check_special_ids(model_file)
        self.starts_word = np.array(
            [_begins_word(self.id_to_piece(i)) for i in range(self.vocab_size)]
        )
        self._build_comma_table()

    def id_to_piece(self, piece_id: int) -> str:
        """The spelling of a piece."""
        return self._model.id_to_piece(int(piece_id))

    def normalize(self, text: str) -> str:
        """Text as `encode_normalized` wants it, and documents are compared."""
        return normalize(text, self.do_lower_case)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        """Pieces of raw texts; spellings like "[CLS]" are mere text."""
        return self.encode_normalized([self.normalize(text) for text in texts])

    def encode_normalized(self, texts: Sequence[str]) -> EncodedTexts:
        """Pieces of texts that `self.normalize` has seen."""
        # One thread: whoever wants more starts processes.
        encoded = self._model.encode(list(texts), num_threads=1)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.fromiter(
            itertools.chain.from_iterable(encoded), np.int32, lengths.sum()
        )
        return self._split_commas(ids, np.cumsum(lengths))

    def encode_with_masks(self, text: str) -> list[int]:
        """Ids of a text in which "[MASK]" stands for the piece `[MASK]`."""
        parts = text.split(MASK_PIECE)
        encoded = self.encode_batch(parts)
        ids: list[int] = []
        for i, part_ids in enumerate(np.split(encoded.ids, encoded.ends[:-1])):
            if i == 0:
                ids.extend(part_ids.tolist())
                continue
            ids.append(MASK_ID)
            if parts[i][:1].isspace():
                ids.extend(part_ids.tolist())
            else:
                # The model marks the beginning of any text as a word's.
                ids.extend(self._without_word_mark(part_ids.tolist()))
        return ids

    def _check_special_ids(self, model_file: str) -> None:
        first = min(self.vocab_size, len(SPECIAL_PIECES))
        found = tuple(self.id_to_piece(i) for i in range(first))
        if found != SPECIAL_PIECES:
            raise UserError(
                f"the first pieces of {model_file} must be "
                f"{' '.join(SPECIAL_PIECES)}",
                received=" ".join(found),
                remedy="Train one with `python -m data_prep.train_tokenizer`.",
            )
        # Random replacements are drawn from all other pieces.
        others = [
            self.id_to_piece(i)
            for i in range(first, self.vocab_size)
            if self._model.is_control(i) or self._model.is_unknown(i)
        ]
        if others:
            raise UserError(
                f"{model_file} must have no control symbols besides "
                f"{' '.join(SPECIAL_PIECES)}",
                received=" ".join(others[:5]),
            )

    def _build_comma_table(self) -> None:
        """What each piece becomes when commas are split off numbers.

        The published tokenizer looks at each piece after the model: one that
        ends in a digit and a comma is encoded again without its comma and
        its word mark, and the comma follows as a piece of its own. This
        depends on the piece alone, so it is a table: the new ids of piece i
        are `_comma_ids[_comma_begins[i]:][:_comma_lengths[i]]`.
        """
        replaced: list[Sequence[int]] = []
        for i in range(self.vocab_size):
            piece = self.id_to_piece(i)
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                ids = self._model.encode(piece[:-1].replace(WORD_MARK, ""))
                if not piece.startswith(WORD_MARK):
                    ids = self._without_word_mark(ids)
                replaced.append([*ids, self._model.piece_to_id(",")])
            else:
                replaced.append([i])
        self._comma_ids = np.fromiter(
            itertools.chain.from_iterable(replaced), np.int32
        )
        self._comma_lengths = np.fromiter(map(len, replaced), np.int64)
        self._comma_begins = (
            np.cumsum(self._comma_lengths) - self._comma_lengths
        )

    def _without_word_mark(self, ids: list[int]) -> list[int]:
        """`ids` with the word mark taken off the first piece.

        As published, even where the vocabulary lacks what remains, which
        then is `<unk>`.
        """
        first = self.id_to_piece(ids[0]) if ids else ""
        if not first.startswith(WORD_MARK):
            return ids
        rest = first[len(WORD_MARK) :]
        return ([self._model.piece_to_id(rest)] if rest else []) + ids[1:]

    def _split_commas(self, ids: np.ndarray, ends: np.ndarray) -> EncodedTexts:
        lengths = self._comma_lengths[ids]
        new_ends = np.cumsum(lengths)
        offsets = np.arange(lengths.sum()) - np.repeat(
            new_ends - lengths, lengths
        )
        ids = self._comma_ids[
            np.repeat(self._comma_begins[ids], lengths) + offsets
        ]
        ends = np.concatenate([[0], new_ends])[ends]
        return EncodedTexts(ids, self.starts_word[ids], ends)


def _read_model(model_file: str) -> bytes:
    try:
        with open_existing(model_file, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(
            f"the vocabulary {model_file!r} must be a readable file",
            received=error.strerror,
            remedy="Train one with `python -m data_prep.train_tokenizer`.",
        ) from None


def _begins_word(piece: str) -> bool:
    """Whether a piece begins a word, in any script.

    A word begins at a word mark, and, where a script has no spaces, at every
    piece.
    """
    return piece.startswith(WORD_MARK) or any(
        first <= piece[:1] <= last for first, last in _UNSPACED_SCRIPTS
    )
