r"""Train a SentencePiece vocabulary.

A vocabulary as in google-research/albert, where Python normalises the text
before the SentencePiece model reads it:

    python -m data_prep.train_tokenizer \
      --input_file='corpus/*.txt.gz' --model_prefix=build/spm --vocab_size=8000

--vocabulary_kind=self_contained puts the normalisation inside the model, so
that every SentencePiece runtime returns the same ids for raw text.

The command writes PREFIX.model; PREFIX.vocab, the pieces with their scores, as
text; and PREFIX.json, the settings and the digest of the text. The same text
and settings give the same model, for any order of the documents: if the corpus
is larger than --input_characters, the command trains on the sentences of
smallest priority, a random number keyed by the text of their document. Memory
depends only on that setting.

--symbols makes a vocabulary of single characters, without training.

SentencePiece is called with the options of google-research/albert. A
self-contained model holds the normalisation of text as rules, each of which
replaces one character. The rules together equal `tokenization.normalize`
followed by the rules of google-research/albert's model, except where the result
depends on neighbouring characters: Hangul letters typed one by one are not
composed, and a capital sigma at the end of a word becomes an ordinary small
sigma.
"""

import collections
import hashlib
import heapq
import io
import json
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from absl import logging
from sentencepiece import sentencepiece_model_pb2

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.artifact import Artifact, check_writable
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
    sha256_of,
)
from albert_tf.records.tokenization import (
    KEEP_ACCENTS_NAME,
    NORMALIZER_NAMES,
    SELF_CONTAINED,
    make_symbols,
    normalize,
)
from data_prep import text
from data_prep.config import TokenizerConfig

# Speed of SentencePiece's trainer, roughly, measured on two busy cores.
_CHARACTERS_PER_SECOND = 350_000

# Punctuation that is always a separate piece, as in google-research/albert.
_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]  # noqa: RUF001

# The number of threads changes how sums are rounded, so all machines use the
# same number.
_NUM_THREADS = 16

# SentencePiece's sign for unknown characters: its trainer drops sentences that
# have it.
_RESERVED = "\N{LOWER FIVE EIGHTHS BLOCK}"

# The trainer drops longer lines. Its default is 4,192 bytes, but a corpus may
# have a book on one line.
_MAX_LINE_BYTES = 1 << 24

# The trainer gets longer sentences in parts of this number of bytes, since it
# takes the square of the length of a sentence that repeats itself. The parts
# end after a space if possible, and no piece has a space in it.
_LONGEST_PART = 1 << 12

# Characters that google-research/albert's model treats as spaces, in addition
# to Unicode's.
_SPACES = frozenset(
    "\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
    "\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\N{LOWER ONE EIGHTH BLOCK}"
    "\N{ZERO WIDTH NO-BREAK SPACE}\N{REPLACEMENT CHARACTER}"
)


def main(config: TokenizerConfig) -> None:
    """Trains a vocabulary, unless the model file is up to date."""
    config.require("model_prefix")
    model_file = config.model_prefix + ".model"
    suffixes = ".model", ".vocab", ".json"
    found = text.find_inputs(
        config, [config.model_prefix + s for s in suffixes]
    )
    if not files.exists(model_file):
        check_writable(model_file)
    checked = text.check_inputs(found, config)
    digests = sorted(checked.digests.values())
    # Everything that decides the bytes of the model.
    described = {
        "settings": config.result_settings(),
        "inputs_sha256": sha256_of(json.dumps(digests).encode()),
        **text.find_versions(config),
        **text.describe_breaking(config),
    }
    symbols = _read_symbols(config.symbols)
    if config.symbols:
        described["symbols"] = symbols or "those of the text"
    if _is_up_to_date(config, described):
        logging.info("%s.model is up to date", config.model_prefix)
        return
    check_writable(model_file)
    if config.symbols:
        model, counted = _make_symbols(config, checked, symbols)
        _write_model(config.model_prefix, model, {**described, **counted})
        return

    if not config.keep_accents:
        checked.warn_of_lost_accents(
            "Set --keep_accents, unless you continue a model "
            "whose vocabulary drops them."
        )
    skipped: collections.Counter[str] = collections.Counter()
    documents = checked.read_documents("reading sentences", skipped)
    sample = _draw_sentences(config, documents, skipped)
    described |= {
        "num_sentences": len(sample),
        "num_characters": sample.num_characters,
    }
    # SentencePiece reports no progress.
    logging.info(
        "training on %.1fM characters; takes about %.0f s on two cores",
        sample.num_characters / 1e6,
        sample.num_characters / _CHARACTERS_PER_SECOND,
    )
    parts = (
        part.decode()
        for sentence in sample.take()
        for part in text.cut(sentence.encode(), _LONGEST_PART)
    )
    model = _train_model(config, parts)
    _write_model(config.model_prefix, model, described)
    logging.info(
        "%s.model: %d pieces; skipped or split: %s",
        config.model_prefix,
        config.vocab_size,
        text.join_counts(skipped) or "nothing",
    )


def _is_up_to_date(config: TokenizerConfig, described: dict[str, Any]) -> bool:
    """Whether the model file has this description; another one is refused."""
    path = config.model_prefix + ".model"
    if not files.exists(path):
        return False
    with files.open_existing(path, "rb") as file:
        expected = {**described, "model_sha256": sha256_of(file.read())}
    settings = {**expected, **expected["settings"]}
    del settings["settings"]
    artifact = Artifact(
        "model_prefix", "model", expected, settings, config.overwrite
    )
    return artifact.compare(
        files.load_json_if_any(config.model_prefix + ".json"), path
    )


def _read_symbols(path: str) -> str:
    """The characters of a list, in order; "" for those of the text."""
    if path in ("", "text"):
        return ""
    with files.open_existing(path, "rb") as file:
        content = file.read()
    try:
        symbols = "".join(content.decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8", str(error)) from None
    if not symbols:
        raise UserError(f"{path} must hold symbols", received="none")
    return symbols


def _make_symbols(
    config: TokenizerConfig, checked: text.CheckedText, symbols: str
) -> tuple[bytes, dict[str, int]]:
    """A model of a list of symbols, or of those of the text, and its counts.

    Raises:
        UserError: If the list lacks more than a few characters of the text.
    """
    counts: collections.Counter[str] = collections.Counter()
    skipped: collections.Counter[str] = collections.Counter()
    for lines in checked.read_documents("counting symbols", skipped):
        for sentence in text.break_sentences(lines, config, skipped):
            counts.update(sentence)
    total = counts.total()
    if not symbols:
        symbols = _cover(counts, config.character_coverage)
    unknown = {c: n for c, n in counts.most_common() if c not in symbols}
    num_unknown = sum(unknown.values())
    examples = [f"{c!r} {n:,} times" for c, n in [*unknown.items()][:5]]
    named = f": {', '.join(examples)}"
    text.refuse_unknown(num_unknown, total, named)
    logging.info(
        "%s.model: %d symbols; %d of %d characters are unknown%s",
        config.model_prefix,
        len(set(symbols)),
        num_unknown,
        total,
        named if unknown else "",
    )
    model = make_symbols(symbols)
    return model, {"num_characters": total, "num_unknown": num_unknown}


def _cover(counts: Mapping[str, int], coverage: float) -> str:
    """The most frequent characters, up to this share of a text."""
    symbols, covered = "", 0
    wanted = coverage * sum(counts.values())
    for symbol, count in sorted(counts.items(), key=lambda c: (-c[1], c)):
        if covered >= wanted:
            break
        symbols += symbol
        covered += count
    return symbols


def draw_priorities(lines: Sequence[str], num_sentences: int) -> list[int]:
    """Returns 64 random bits per sentence, keyed by the text of a document."""
    content = "\n".join(lines).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    key = np.frombuffer(digest, "<u8")
    bits = random_bits(key.repeat(num_sentences), np.arange(num_sentences))
    return bits.tolist()


class SentenceSample:
    """The sentences of smallest priority, up to a size.

    Attributes:
        threshold: Sentences of this priority or a larger one are dropped.
        num_characters: Number of characters of the kept sentences.
    """

    def __init__(self, max_sentences: int, max_characters: int) -> None:
        self._max_sentences = max_sentences
        self._max_characters = max_characters
        # Negated priorities, so that the largest priority comes first.
        self._heap: list[tuple[int, str]] = []
        self.threshold = 1 << 64
        self.num_characters = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, priority: int, sentence: str) -> None:
        """Adds a sentence if its priority is below the threshold."""
        if priority >= self.threshold:
            return
        heapq.heappush(self._heap, (-priority, sentence))
        self.num_characters += len(sentence)
        while (
            len(self._heap) > self._max_sentences
            or self.num_characters > self._max_characters
        ):
            negative, dropped = heapq.heappop(self._heap)
            self.threshold = -negative
            self.num_characters -= len(dropped)

    def take(self) -> Iterator[str]:
        """Yields the sentences by increasing priority, and removes them."""
        self._heap.sort()
        while self._heap:
            yield self._heap.pop()[1]


def _draw_sentences(
    config: TokenizerConfig,
    documents: Iterable[list[str]],
    skipped: collections.Counter[str],
) -> SentenceSample:
    """The sentences to train on, as `_train_model` takes them."""
    sample = SentenceSample(config.input_sentence_size, config.input_characters)
    is_raw = config.vocabulary_kind == SELF_CONTAINED
    for lines in documents:
        sentences = text.break_sentences(lines, config, skipped)
        priorities = draw_priorities(lines, len(sentences))
        for priority, sentence in zip(priorities, sentences, strict=True):
            if priority >= sample.threshold:
                continue
            if _RESERVED in sentence:  # SentencePiece would drop the sentence
                sentence = sentence.replace(_RESERVED, " ")
                skipped[f"sentences with {_RESERVED}, read as a space"] += 1
            normalized = normalize(
                sentence, config.do_lower_case, config.keep_accents
            )
            if normalized:
                sample.add(priority, sentence if is_raw else normalized)
    return sample


def _write_model(prefix: str, model: bytes, described: dict[str, Any]) -> None:
    """Writes PREFIX.vocab, .json and .model, each atomically, .model last."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    vocabulary = "".join(
        f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
        for i in range(processor.vocab_size())
    )
    described = {**described, "model_sha256": sha256_of(model)}
    files.write_bytes(prefix + ".vocab", vocabulary.encode())
    files.write_json(prefix + ".json", described)
    files.write_bytes(prefix + ".model", model)


# --- training ----------------------------------------------------------------


def _train_model(config: TokenizerConfig, sentences: Iterator[str]) -> bytes:
    """Returns the content of a SentencePiece model file.

    Args:
        sentences: Normalised for a published vocabulary, raw for a
            self-contained vocabulary.
    """
    if config.vocabulary_kind == SELF_CONTAINED:
        name = NORMALIZER_NAMES[config.do_lower_case]
        rules = make_rules(config.do_lower_case)
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
            file.writelines(
                f"{_spell(character)}\t{_spell(replacement)}\n"
                for character, replacement in rules.items()
            )
            file.flush()
            model = _run_trainer(
                config,
                sentences,
                # google-research/albert splits a comma off a number in Python.
                # With a comma as a separate piece, there is nothing to split.
                user_defined_symbols=[*_SYMBOLS, ","],
                normalization_rule_tsv=file.name,
            )
    else:
        model = _run_trainer(config, sentences, user_defined_symbols=_SYMBOLS)
        if not config.keep_accents:
            return model
        name = KEEP_ACCENTS_NAME
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.name = name
    # The path of the temporary file differs between calls.
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    return proto.SerializeToString(deterministic=True)


def _run_trainer(
    config: TokenizerConfig, sentences: Iterator[str], **options: Any
) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            eos_id=-1,
            pad_piece=SPECIAL_PIECES[PAD_ID],
            unk_piece=SPECIAL_PIECES[UNK_ID],
            control_symbols=[
                SPECIAL_PIECES[i] for i in (CLS_ID, SEP_ID, MASK_ID)
            ],
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            # The sentences are a sample already.
            input_sentence_size=0,
            shuffle_input_sentence=False,
            max_sentence_length=_MAX_LINE_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=1,
            **options,
        )
    except (RuntimeError, OSError) as error:
        raise _explain(config, str(error)) from error
    return model.getvalue()


def _explain(config: TokenizerConfig, message: str) -> Exception:
    """Returns an error of the trainer in terms of the settings."""
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            "vocab_size must not exceed the number of pieces in the text",
            received=config.vocab_size,
            remedy=f"Largest possible: {largest[1]}. Or provide more text.",
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            "vocab_size must exceed the number of characters to cover",
            received=config.vocab_size,
            remedy=f"Set at least {smallest[1]}, or a lower "
            "--character_coverage.",
        )
    return UserError(
        "SentencePiece failed to train the vocabulary",
        received=message,
        remedy="If the text is very short, provide more.",
    )


def make_rules(do_lower_case: bool) -> dict[str, str]:
    """Returns the characters that normalisation changes, with replacements.

    The rules are idempotent. They follow the Unicode version of this Python.
    """
    # NUL ends a string in SentencePiece; surrogates are not characters.
    code_points = (*range(1, 0xD800), *range(0xE000, sys.maxunicode + 1))
    return {
        character: replacement
        for character in map(chr, code_points)
        if character
        != (replacement := _normalize_character(character, do_lower_case))
    }


def _normalize_character(character: str, do_lower_case: bool) -> str:
    if character.isspace() or character in _SPACES:
        return " "
    if unicodedata.category(character) == "Cc":
        return ""
    # `normalize` strips spaces at the ends, so letters enclose the character.
    # It also decomposes Hangul syllables, which NFKC composes again.
    text = normalize(f"x{character}x", do_lower_case)[1:-1]
    return unicodedata.normalize("NFKC", text)


def _spell(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


if __name__ == "__main__":
    flags.run(main, TokenizerConfig)
