"""Converts text to token ids, and to the inputs of a model.

There are two kinds of vocabulary. For a vocabulary of google-research/albert,
Python code normalises text before the SentencePiece model, and splits pieces
such as "2011," after it. The checkpoints of google-research/albert were trained
on the resulting ids. A self-contained vocabulary normalises text in the model,
so every SentencePiece runtime returns the same ids for raw text. A vocabulary
of symbols is a self-contained one that changes nothing: its pieces are single
characters, and the space is one of them.

`Tokenizer.encode` makes the inputs that an exported model, which tokenizes in
its graph (`serving.text_tokenizer`), makes of the same texts.
"""

import itertools
import posixpath
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sentencepiece
from absl import logging

from albert_tf.errors import UserError, first_line
from albert_tf.io import files, shipped
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    TOKENIZER_FILE,
    UNK_ID,
    sha256_of,
)
from albert_tf.records.word_boundaries import WORD_MARK, WordBoundaries

Tokens: TypeAlias = Sequence[list[int]]

MASK_PIECE = SPECIAL_PIECES[MASK_ID]
_HUGGING_FACE_FILE = "tokenizer_config.json"

# The kinds of a vocabulary, as metadata.json names them.
GOOGLE_ALBERT = "published"
SELF_CONTAINED = "self_contained"

# Names of the normaliser in a self-contained model, by `do_lower_case`. The
# name is stored in the model file, so the file alone determines its kind.
NORMALIZER_NAMES = {
    True: "albert_tf_self_contained_uncased",
    False: "albert_tf_self_contained_cased",
}
# That of a model whose text keeps its combining marks.
KEEP_ACCENTS_NAME = "albert_tf_keep_accents"
# That of a vocabulary of symbols.
SYMBOLS_NAME = "albert_tf_symbols"

# A text that would lose marks of a larger share of its letters is warned of.
USUAL_LOST_ACCENTS = 0.005


class EncodedTexts(NamedTuple):
    """The tokens of several texts, concatenated.

    Attributes:
        ids: int32, `(tokens,)`.
        ends: int64, `(texts,)`, index after the last token of each text.
    """

    ids: np.ndarray
    ends: np.ndarray


def normalize(
    text: str, do_lower_case: bool = True, keep_accents: bool = False
) -> str:
    """Normalises text as google-research/albert does before SentencePiece.

    White space, compatibility characters, combining marks and case change. With
    `keep_accents`, marks are composed with their letters (NFKC), not dropped.

    Example:
        >>> normalize("  Crème   BRÛLÉE ")
        'creme brulee'
        >>> normalize("  Crème   BRÛLÉE ", keep_accents=True)
        'crème brûlée'
    """
    text = " ".join(text.split())
    if keep_accents:
        text = unicodedata.normalize("NFKC", text)
    elif not text.isascii():
        # In parts, since sorting a run of marks takes the square of its length.
        # The order of the marks, which are dropped, does not matter.
        parts = [text[i : i + 1024] for i in range(0, len(text), 1024)]
        text = "".join(unicodedata.normalize("NFKD", part) for part in parts)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if do_lower_case else text


def describe_lost_accents(text: str) -> str:
    """What `normalize` without `keep_accents` drops from a text, or "".

    "" if at most USUAL_LOST_ACCENTS of the letters lose marks.
    """
    text = unicodedata.normalize("NFC", text)
    # Counts first: a test of each character would take ten times as long.
    counts = Counter(text)
    letters = [c for c in counts if c.isalpha() or unicodedata.combining(c)]
    lost = {
        c for c in letters if normalize(c) != normalize(c, keep_accents=True)
    }
    num_letters = sum(counts[letter] for letter in letters)
    share = sum(counts[letter] for letter in lost) / max(1, num_letters)
    if share <= USUAL_LOST_ACCENTS:
        return ""
    word = next(word for word in text.split() if not lost.isdisjoint(word))
    return (
        f"{share:.1%} of the letters lose their marks: "
        f"{normalize(word, False, True)!r} becomes {normalize(word, False)!r}"
    )


class Tokenizer:
    """A SentencePiece vocabulary with the special ids of ALBERT.

    Args:
        model_file: The SentencePiece model, local or gs://, or the name of a
            released model.
        do_lower_case: Whether to convert text to lower case, which symbols
            never are. It must be the value with which the model was trained.
            None stands for the value
            stored in a self-contained model; or else in the file that
            train_tokenizer (PREFIX.json) or Hugging Face
            (tokenizer_config.json) writes next to the model; or else True.

    Attributes:
        vocab_size: Number of pieces.
        kind: GOOGLE_ALBERT if text is normalised before the model;
            SELF_CONTAINED if the model normalises text.
        do_lower_case: Whether text is converted to lower case.
        keep_accents: Whether text keeps combining marks.
        has_symbols: Whether the pieces are symbols; see `make_symbols`.
        space_id: The symbol of a space; -1 without.
        sentence_end: What separates the sentences of a document: a space if it
            is a symbol; else "", as the word mark of a piece separates them.
        sha256: Hexadecimal digest of the model file.
        words: Finds where words begin.

    Raises:
        UserError: If the file is missing, is not a SentencePiece model, has
            different special ids, or contradicts `do_lower_case`.
    """

    def __init__(
        self, model_file: str, do_lower_case: bool | None = None
    ) -> None:
        model_file = shipped.find(model_file, shipped.VOCABULARY)
        with files.open_existing(model_file, "rb") as file:
            content = file.read()
        self.sha256 = sha256_of(content)
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.load_from_serialized_proto(content)
            self.vocab_size: int = self._model.vocab_size()
            self._pieces: list[str] = self._model.id_to_piece(
                list(range(self.vocab_size))
            )
        except (RuntimeError, ValueError) as error:  # also of UTF-8
            raise UserError(
                f"{model_file} must be a SentencePiece model",
                received=f"{len(content)} bytes; {first_line(error)}",
            ) from None
        self.has_symbols = _has_normalizer(content, SYMBOLS_NAME)
        self._check_special_ids(model_file)
        if self.has_symbols:
            self.kind, self.do_lower_case = SELF_CONTAINED, False
        else:
            self.kind, self.do_lower_case = _find_kind(
                model_file, content, do_lower_case
            )
        self.keep_accents = _has_normalizer(content, KEEP_ACCENTS_NAME)
        self.space_id = -1
        if self.has_symbols and WORD_MARK in self._pieces:
            self.space_id = self._pieces.index(WORD_MARK)
        self.sentence_end = " " if self.space_id >= 0 else ""
        self.words = WordBoundaries(
            self._pieces,
            [self._byte_of(i) for i in range(self.vocab_size)],
            self.has_symbols,
        )
        if self.kind == GOOGLE_ALBERT:
            self._build_comma_table()

    def describe(self) -> dict[str, Any]:
        """The content of `records_metadata.json` in a run without records."""
        return {
            "vocabulary_sha256": self.sha256,
            "vocabulary_kind": self.kind,
            "do_lower_case": self.do_lower_case,
            "vocab_size": self.vocab_size,
        }

    def _byte_of(self, piece_id: int) -> int:
        """The byte of a byte piece, e.g. 65 of <0x41>; -1 of other pieces."""
        piece = self._pieces[piece_id]
        # By spelling first, since a call takes long.
        if piece.startswith("<0x") and self._model.is_byte(piece_id):
            return int(piece[1:-1], 16)
        return -1

    def id_to_piece(self, piece_id: int) -> str:
        """Returns the spelling of a piece."""
        return self._pieces[piece_id]

    def normalize(self, text: str) -> str:
        """Normalises text for `encode_normalized` and for deduplication."""
        if self.kind == GOOGLE_ALBERT:
            return normalize(text, self.do_lower_case, self.keep_accents)
        if self.has_symbols:
            return text
        # `encode` normalises the text again, which does not change it.
        normalized = self._model.normalize(text)
        return normalized[len(WORD_MARK) :].replace(WORD_MARK, " ")

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        """Tokenizes raw texts, in which "[CLS]" and the like are plain text."""
        return self.encode_normalized([self.normalize(text) for text in texts])

    def encode_normalized(self, texts: Sequence[str]) -> EncodedTexts:
        """Tokenizes texts that `self.normalize` returned."""
        # One thread: callers run several processes.
        encoded = self._model.encode(list(texts), num_threads=1)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.fromiter(
            itertools.chain.from_iterable(encoded), np.int32, lengths.sum()
        )
        ends = np.cumsum(lengths)
        if self.kind == GOOGLE_ALBERT:
            # The ids that replace each piece: see `_build_comma_table`.
            lengths = self._comma_lengths[ids]
            new_ends = np.cumsum(lengths)
            begins = self._comma_begins[ids] - (new_ends - lengths)
            ids = self._comma_ids[
                np.repeat(begins, lengths) + np.arange(lengths.sum())
            ]
            ends = np.concatenate([[0], new_ends])[ends]
        return EncodedTexts(ids, ends)

    def encode_with_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Tokenizes one text, and finds the characters of each token.

        Args:
            text: A text that `self.normalize` returned; or a raw text, if the
                vocabulary is self-contained.

        Returns:
            Id, begin and end of each token: it is `text[begin:end]`, white
            space before it included. A token without characters, such as a
            bare word mark, has an empty span.
        """
        proto = self._model.encode(text, out_type="immutable_proto")
        spans = [(piece.id, piece.begin, piece.end) for piece in proto.pieces]
        if self.kind != GOOGLE_ALBERT:
            return spans
        return [
            part
            for piece_id, begin, end in spans
            for part in self.split_comma(piece_id, begin, end)
        ]

    def encode_with_masks(self, text: str) -> list[int]:
        """Tokenizes a raw text in which "[MASK]" is the mask token."""
        parts = text.split(MASK_PIECE)
        encoded = self.encode_batch(parts)
        first, *others = np.split(encoded.ids, encoded.ends[:-1])
        ids: list[int] = first.tolist()
        for part, part_ids in zip(parts[1:], others, strict=True):
            after = part_ids.tolist()
            if not part[:1].isspace():
                # The model takes the start of every text for a word start.
                after = self._without_word_mark(after)
            ids += [MASK_ID, *after]
        return ids

    def warn_of_cut(
        self, rows: Iterable[Sequence[str]], max_seq_length: int
    ) -> None:
        """Says how many texts or pairs of texts `encode` would truncate."""
        encoded = [map(self.encode_with_masks, row) for row in rows]
        warn_of_cut(map(sequence_length, encoded), max_seq_length)

    def encode(
        self,
        texts: str | Sequence[str],
        text_pairs: str | Sequence[str] | None = None,
        max_seq_length: int = 512,
    ) -> "ModelInputs":
        """Tokenizes texts, or pairs of texts, for a model.

        The rows are as long as the longest one needs. A text that is too long
        is truncated at its end. The longer text of a pair is truncated first.

        Args:
            texts: Texts, in which "[MASK]" is the mask token; a string is one
                text.
            text_pairs: The second text of each pair; None for single texts.
            max_seq_length: Maximum number of tokens in a row, `[CLS]` and
                `[SEP]` included; at most `max_position_embeddings` of the
                model.

        Raises:
            ValueError: If `texts` and `text_pairs` differ in length, or if
                `max_seq_length` has no room for `[CLS]` and `[SEP]`.
        """

        def ids(texts: str | Sequence[str]) -> Tokens:
            texts = [texts] if isinstance(texts, str) else texts
            return [self.encode_with_masks(text) for text in texts]

        seconds = None if text_pairs is None else ids(text_pairs)
        return make_inputs(*truncate(ids(texts), seconds, max_seq_length))

    def decode(self, ids: Any) -> Any:
        """The text of token ids, or of each row of them.

        It leaves out [CLS], [SEP] and padding.

        Example:
            >>> tokenizer = Tokenizer("albert_mini_en")
            >>> inputs = tokenizer.encode(["It is [MASK].", "Run"])
            >>> tokenizer.decode(inputs.input_ids)
            ['it is [MASK].', 'run']
        """
        if np.ndim(ids) > 1:
            return [self.decode(row) for row in ids]
        text, part = "", list[int]()
        space = "" if self.has_symbols else " "
        for i in [*map(int, ids), MASK_ID]:
            if i == MASK_ID:
                words = self._model.decode(part)
                if part and self._pieces[part[0]][:1] == WORD_MARK:
                    text += space
                text += f"{words}{space}{MASK_PIECE}"
                part = []
            elif i not in (PAD_ID, CLS_ID, SEP_ID):
                part.append(i)
        return text.removesuffix(MASK_PIECE).strip()

    def split_comma(
        self, piece_id: int, begin: int, end: int
    ) -> list[tuple[int, int, int]]:
        """Splits a comma off a number, as google-research/albert does.

        Args:
            piece_id: A token, from the SentencePiece model.
            begin, end: The span of its characters. They are counted from the
                end, since white space may precede the first one.

        Returns:
            Id, begin and end of the tokens that replace it.
        """
        length = int(self._comma_lengths[piece_id])
        if length == 1:
            return [(piece_id, begin, end)]
        first = int(self._comma_begins[piece_id])
        parts = []
        for part in reversed(self._comma_ids[first : first + length].tolist()):
            size = len(self._pieces[part].removeprefix(WORD_MARK))
            part_begin = max(begin, end - size) if part != UNK_ID else begin
            parts.append((part, part_begin, end))
            end = part_begin
        return parts[::-1]

    def _check_special_ids(self, model_file: str) -> None:
        found = tuple(self._pieces[: len(SPECIAL_PIECES)])
        received = " ".join(found) or "none"
        if found == SPECIAL_PIECES:
            # Text never becomes a control symbol. Masking draws random
            # replacements from all pieces but these.
            special = set(range(len(SPECIAL_PIECES))) - {UNK_ID}
            are_control = self._model.is_control(list(range(self.vocab_size)))
            control = set(itertools.compress(itertools.count(), are_control))
            wrong = sorted(control ^ special)[:5]
            if not self._model.is_unknown(UNK_ID):
                wrong.append(UNK_ID)
            names = " ".join(self._pieces[i] for i in wrong)
            received = f"{names} of another type" if wrong else ""
        if received:
            raise UserError(
                f"the first pieces of {model_file} must be the special pieces "
                f"{' '.join(SPECIAL_PIECES)}; <unk> must be its unknown piece, "
                "and the others its control symbols",
                received=received,
                remedy="Train a vocabulary with "
                "`python -m data_prep.train_tokenizer`.",
            )
        if self.has_symbols:
            return
        joined = "".join(self._model.encode("a b", out_type=str))
        if not joined.startswith(WORD_MARK) or joined.endswith(WORD_MARK):
            raise UserError(
                f"{model_file} must mark the beginning of each word, the "
                "first one included",
                received=f"{joined} for the text 'a b'",
                remedy="Train it with add_dummy_prefix and without "
                "treat_whitespace_as_suffix.",
            )

    def _build_comma_table(self) -> None:
        """Tabulates the pieces that replace each piece.

        The tokenizer of google-research/albert checks each piece that the
        model returns. A piece that ends in a digit and a comma is encoded
        again without its comma and its word mark, and the piece "," follows.
        The result depends only on the piece: the ids that replace piece i are
        `_comma_ids[_comma_begins[i]:][:_comma_lengths[i]]`.
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
        """Removes the word mark from the first piece.

        As in google-research/albert, the rest of the piece becomes `<unk>` if
        it is not in the vocabulary.
        """
        first = self.id_to_piece(ids[0]) if ids else ""
        if not first.startswith(WORD_MARK):
            return ids
        rest = first.removeprefix(WORD_MARK)
        if not rest:
            return ids[1:]
        return [self._model.piece_to_id(rest), *ids[1:]]


def make_symbols(symbols: Iterable[str]) -> bytes:
    """A SentencePiece model of the special pieces and of symbols, in order.

    Args:
        symbols: Single characters; a repeated one counts once.
    """
    # Imported late, since it takes as long as all other imports here.
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    types = model.SentencePiece.Type
    for i, piece in enumerate(SPECIAL_PIECES):
        kind = types.UNKNOWN if i == UNK_ID else types.CONTROL
        model.pieces.add(piece=piece, score=0.0, type=kind)
    # A word mark in the text is a space for SentencePiece.
    marked = (WORD_MARK if symbol == " " else symbol for symbol in symbols)
    for rank, piece in enumerate(dict.fromkeys(marked)):
        model.pieces.add(piece=piece, score=-rank - 1.0)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = trainer.CHAR
    trainer.vocab_size = len(model.pieces)
    trainer.pad_id, trainer.unk_id = PAD_ID, UNK_ID
    trainer.bos_id = trainer.eos_id = -1
    normalizer.name = SYMBOLS_NAME
    normalizer.precompiled_charsmap = b""
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return model.SerializeToString(deterministic=True)


def character_class(is_member: Callable[[str], object]) -> str:
    r"""A regular expression for one character of a set: `[\x{300}-\x{34E}]`."""
    members = {i for i in range(sys.maxunicode + 1) if is_member(chr(i))}
    firsts = sorted(i for i in members if i - 1 not in members)
    lasts = sorted(i for i in members if i + 1 not in members)
    ranges = zip(firsts, lasts, strict=True)
    return "[" + "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b in ranges) + "]"


def _find_kind(
    model_file: str, content: bytes, do_lower_case: bool | None
) -> tuple[str, bool]:
    """Returns the kind of a vocabulary and its `do_lower_case`."""
    kind = GOOGLE_ALBERT
    stored, source = _read_lower_case(model_file, sha256_of(content))
    for lower_case, name in NORMALIZER_NAMES.items():
        if _has_normalizer(content, name):
            kind, stored, source = SELF_CONTAINED, lower_case, "its normaliser"
    if None not in (stored, do_lower_case) and stored != do_lower_case:
        value = str(stored).lower()
        raise UserError(
            f"do_lower_case must be {value} for {model_file}, as {source} says",
            received=str(do_lower_case).lower(),
            remedy=f"Set --do_lower_case={value}.",
        )
    if stored is None:
        stored = do_lower_case
    return kind, True if stored is None else stored


def _has_normalizer(content: bytes, name: str) -> bool:
    """Whether the normaliser of a serialized model has a name.

    SentencePiece does not report it, and importing protobuf takes as long as
    the rest of `Tokenizer`. So this function searches for the bytes of the
    name: the tag of field 1, the length, the name, and the tag of field 2, the
    rules. A piece of the same spelling does not match: its score follows, a
    float with the tag 0x15.
    """
    return b"\n%c%b\x12" % (len(name), name.encode()) in content


def _read_lower_case(model_file: str, sha256: str) -> tuple[bool | None, str]:
    """The `do_lower_case` of a file next to a model, and the path of the file.

    None without such a file, or if its digest is that of another model.
    """
    path = model_file.removesuffix(".model") + ".json"
    if posixpath.basename(model_file) == TOKENIZER_FILE:
        path = posixpath.join(posixpath.dirname(model_file), _HUGGING_FACE_FILE)
    try:
        found = files.load_json_if_any(path) or {}
    except files.DamagedFileError:  # a file of another program
        found = {}
    settings = found.get("settings", found)
    value = (
        settings.get("do_lower_case") if isinstance(settings, dict) else None
    )
    is_own = found.get("model_sha256", sha256) == sha256
    return (value if is_own and isinstance(value, bool) else None), path


# --- inputs of a model -------------------------------------------------------


class ModelInputs(NamedTuple):
    """A batch of texts, int32, `(batch, length)`.

    Attributes:
        input_ids: `[CLS] A [SEP]` for a text, `[CLS] A [SEP] B [SEP]` for a
            pair; padded with `<pad>`.
        input_mask: 1 for a token, 0 for padding.
        segment_ids: 1 for the second text and its `[SEP]`, 0 elsewhere.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray


def sequence_length(segments: Iterable[Sequence[int]]) -> int:
    """The length of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
    return 1 + sum(len(ids) + 1 for ids in segments)


def warn_of_cut(
    lengths: Iterable[int], max_seq_length: int, source: str = ""
) -> None:
    """Says how many sequences, of these lengths, are truncated."""
    are_cut = [length > max_seq_length for length in lengths]
    if any(are_cut):
        logging.warning(
            "%d of %d texts%s have more than %d tokens, and are cut",
            sum(are_cut),
            len(are_cut),
            source and f" of {source}",
            max_seq_length,
        )


def truncate(
    firsts: Tokens, seconds: Tokens | None, max_seq_length: int
) -> tuple[Tokens, Tokens | None]:
    """Cuts texts, or pairs of texts, to fit in a row; see `make_inputs`."""
    smallest = 2 if seconds is None else 3
    if max_seq_length < smallest:
        raise ValueError(
            f"max_seq_length must be at least {smallest}, for [CLS] and [SEP]. "
            f"Received: {max_seq_length}"
        )
    if seconds is None:
        return [first[: max_seq_length - 2] for first in firsts], None
    # The longer text is cut first; of two equally long ones, the second.
    room = max_seq_length - 3
    firsts = [
        first[: max(room - len(second), (room + 1) // 2)]
        for first, second in zip(firsts, seconds, strict=True)
    ]
    pairs = zip(firsts, seconds, strict=True)
    return firsts, [second[: room - len(first)] for first, second in pairs]


def cut_choices(
    context: list[int],
    choices: Tokens,
    max_choice_length: int,
    max_seq_length: int,
) -> tuple[Tokens, Tokens]:
    """Cuts a context, once for each choice, and the choices; see `make_inputs`.

    Choices, with their question, keep their last `max_choice_length` tokens;
    the context loses its end, as in google-research/albert.
    """
    room = max_seq_length - 3
    longest = min(max_choice_length, room)
    seconds = [choice[-longest:] for choice in choices]
    return [context[: room - len(second)] for second in seconds], seconds


def first_tokens(
    num_tokens: np.ndarray, max_seq_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the first tokens of words in `[CLS] words [SEP]`.

    Args:
        num_tokens: int, `(words,)`: the number of tokens of each word.

    Returns:
        The positions, and whether the sequence has the token: a word without
        tokens has none, nor has one beyond `max_seq_length`.
    """
    positions = 1 + np.cumsum(num_tokens) - num_tokens
    is_read = (num_tokens > 0) & (positions < max_seq_length - 1)
    return positions, is_read


def make_inputs(
    firsts: Tokens, seconds: Tokens | None = None, length: int = 0
) -> ModelInputs:
    """Makes the sequences of texts, or of pairs of texts.

    Args:
        firsts, seconds: Token ids of each text, and of each second text; None
            for single texts.
        length: Length of the rows; 0 for that of the longest sequence.

    Example:
        >>> inputs = make_inputs([[7], [7, 7]], [[8, 9], []])
        >>> inputs.input_ids.tolist()
        [[2, 7, 3, 8, 9, 3], [2, 7, 7, 3, 3, 0]]
        >>> inputs.segment_ids.tolist()
        [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0]]
    """
    begins = [[CLS_ID, *first, SEP_ID] for first in firsts]
    rows = begins
    if seconds is not None:
        rows = [
            [*begin, *second, SEP_ID]
            for begin, second in zip(begins, seconds, strict=True)
        ]
    shape = (len(rows), length or max(map(len, rows), default=0))
    inputs = ModelInputs(
        np.full(shape, PAD_ID, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
    )
    for i, (begin, row) in enumerate(zip(begins, rows, strict=True)):
        inputs.input_ids[i, : len(row)] = row
        inputs.input_mask[i, : len(row)] = 1
        inputs.segment_ids[i, len(begin) : len(row)] = 1
    return inputs


encode = Tokenizer.encode
