"""Text -> ids of SentencePiece pieces.

There are two kinds of vocabulary. A published one, as google-research/albert
has them, needs code around it: text is normalised before the model sees it,
and pieces such as "2011," are split once more; both decide which ids a
published checkpoint knows. A self-contained one normalises text itself, so
that every SentencePiece runtime gives the same ids of raw text.
"""

import itertools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing
from albert_tf.records.features import MASK_ID, SPECIAL_PIECES, sha256_of

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
MASK_PIECE = SPECIAL_PIECES[MASK_ID]

# The kinds of a vocabulary, as metadata.json names them.
GOOGLE_ALBERT = "published"
SELF_CONTAINED = "self_contained"

# What a self-contained model calls its normaliser, by `do_lower_case`. The
# name is in the model file, so that its kind needs no other file.
NORMALIZER_NAMES = {
    True: "albert_tf_self_contained_uncased",
    False: "albert_tf_self_contained_cased",
}

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

# Pieces of a single byte, "<0xE3>" and so on, that begin the UTF-8 of U+3000
# to U+9FFF: nothing there but such scripts.
_UNSPACED_LEAD_BYTES = frozenset(f"<0x{byte:X}>" for byte in range(0xE3, 0xEA))


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
            A self-contained model knows: None takes its word for it. Of a
            published one, None is true.

    Attributes:
        vocab_size: Number of pieces.
        kind: GOOGLE_ALBERT: text is normalised before the model sees it; or
            SELF_CONTAINED: by the model.
        do_lower_case: Whether text is lower-cased.
        sha256: Hexadecimal digest of the model file.
        starts_word: bool, `(vocab_size,)`; the pieces that begin a word.

    Raises:
        UserError: If the file is missing, is no SentencePiece model, has
            other special ids, or contradicts `do_lower_case`.
    """

    def __init__(
        self, model_file: str, do_lower_case: bool | None = None
    ) -> None:
        content = _read_model(model_file)
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
        self._pieces: list[str] = self._model.id_to_piece(
            list(range(self.vocab_size))
        )
        self._check_special_ids(model_file)
        self.kind, self.do_lower_case = _find_kind(
            model_file, content, do_lower_case
        )
        self.starts_word = np.array(
            [
                piece in _UNSPACED_LEAD_BYTES
                if piece.startswith("<0x") and self._model.is_byte(i)
                else _begins_word(piece)
                for i, piece in enumerate(self._pieces)
            ]
        )
        if self.kind == GOOGLE_ALBERT:
            self._build_comma_table()

    def id_to_piece(self, piece_id: int) -> str:
        """The spelling of a piece."""
        return self._pieces[piece_id]

    def normalize(self, text: str) -> str:
        """Text as `encode_normalized` wants it, and documents are compared."""
        if self.kind == GOOGLE_ALBERT:
            return normalize(text, self.do_lower_case)
        # To normalise it twice changes nothing, and `encode` does.
        spelled = self._model.normalize(text)
        return spelled[len(WORD_MARK) :].replace(WORD_MARK, " ")

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
        ends = np.cumsum(lengths)
        if self.kind == GOOGLE_ALBERT:
            ids, ends = self.split_commas(ids, ends)
        return EncodedTexts(ids, self.starts_word[ids], ends)

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

    def split_commas(
        self, ids: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Splits commas off numbers, as a published vocabulary has it.

        Args:
            ids: Integers, `(pieces,)`, as the model gives them.
            ends: Integers, `(texts,)`, index behind the last piece of each.

        Returns:
            Both anew; the ids as int32.
        """
        lengths = self._comma_lengths[ids]
        new_ends = np.cumsum(lengths)
        offsets = np.arange(lengths.sum()) - np.repeat(
            new_ends - lengths, lengths
        )
        ids = self._comma_ids[
            np.repeat(self._comma_begins[ids], lengths) + offsets
        ]
        return ids, np.concatenate([[0], new_ends])[ends]

    def _check_special_ids(self, model_file: str) -> None:
        found = tuple(self._pieces[: len(SPECIAL_PIECES)])
        if found != SPECIAL_PIECES:
            raise UserError(
                f"the first pieces of {model_file} must be "
                f"{' '.join(SPECIAL_PIECES)}",
                received=" ".join(found),
                remedy="Train one with `python -m data_prep.train_tokenizer`.",
            )
        # Random replacements are drawn from all other pieces; pieces of a
        # byte may be among them, as they may be in the input.
        ids = list(range(len(SPECIAL_PIECES), self.vocab_size))
        are_control = self._model.is_control(ids)
        others = [self._pieces[i] for i in itertools.compress(ids, are_control)]
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
        replaced: list[Sequence[int]] = [(i,) for i in range(self.vocab_size)]
        for i, piece in enumerate(self._pieces):
            if piece[-1:] == "," and piece[-2:-1].isdigit():
                ids = self._model.encode(piece[:-1].replace(WORD_MARK, ""))
                if not piece.startswith(WORD_MARK):
                    ids = self._without_word_mark(ids)
                replaced[i] = [*ids, self._model.piece_to_id(",")]
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


def _find_kind(
    model_file: str, content: bytes, do_lower_case: bool | None
) -> tuple[str, bool]:
    """The kind of a model, and whether it wants text in lower case.

    SentencePiece does not tell the name of a normaliser, and to import
    protobuf takes as long as all else that a `Tokenizer` does. So the bytes
    are looked for: field 1, its length, the name, and the tag of field 2, the
    rules. No piece looks so: after a piece comes its score, a float, whose tag
    is 0x15.

    Raises:
        UserError: If the model's own answer contradicts `do_lower_case`.
    """
    for lower_case, name in NORMALIZER_NAMES.items():
        if b"\n%c%b\x12" % (len(name), name.encode()) in content:
            if do_lower_case not in (None, lower_case):
                raise UserError(
                    f"do_lower_case must be {str(lower_case).lower()} for "
                    f"{model_file}, which normalises text itself",
                    received=str(do_lower_case).lower(),
                    remedy=f"Set --do_lower_case={str(lower_case).lower()}.",
                )
            return SELF_CONTAINED, lower_case
    return GOOGLE_ALBERT, do_lower_case is not False


def _begins_word(piece: str) -> bool:
    """Whether a piece begins a word, in any script.

    A word begins at a word mark, and, where a script has no spaces, at every
    piece.
    """
    first = piece[:1]
    return first == WORD_MARK or (
        not first.isascii()
        and any(begin <= first <= end for begin, end in _UNSPACED_SCRIPTS)
    )
