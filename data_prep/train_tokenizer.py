r"""Train a SentencePiece vocabulary.

A vocabulary as in google-research/albert, where Python normalises the text
before the SentencePiece model reads it:

    python -m data_prep.train_tokenizer \
      --input_file='corpus/*.txt.gz' --model_prefix=build/spm --vocab_size=8000

A cased vocabulary with the normalisation inside the model, so that every
SentencePiece runtime returns the same ids for raw text:

    python -m data_prep.train_tokenizer \
      --input_file='corpus/*.txt.gz' --model_prefix=build/cased \
      --vocabulary_kind=self_contained --do_lower_case=false

A Chinese vocabulary that spells rare characters as bytes:

    python -m data_prep.train_tokenizer \
      --input_file='zh/*.txt.gz' --model_prefix=build/zh \
      --vocabulary_kind=self_contained --byte_fallback \
      --character_coverage=0.9995

The command writes PREFIX.model; PREFIX.vocab, the pieces with their scores, as
text; and PREFIX.json, the settings, the digest of the text, and a report on
held-out sentences. The same text and settings give the same model, in whatever
order the files come. A corpus larger than --input_characters is sampled, so
that memory depends on that setting only.
"""

import collections
import hashlib
import io
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np
import sentencepiece
from absl import logging
from sentencepiece import sentencepiece_model_pb2

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io.files import (
    exists,
    load_json_if_any,
    open_existing,
    write_bytes,
)
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
    NORMALIZER_NAMES,
    SELF_CONTAINED,
    WORD_MARK,
    Tokenizer,
    normalize,
)
from data_prep.config import TokenizerConfig
from data_prep.progress import show_bytes
from data_prep.text import corpus
from data_prep.text.sentence_breaking import break_sentences
from data_prep.vocabulary.normalization_rules import format_rules, make_rules
from data_prep.vocabulary.sentence_sample import SentenceSample, draw_priorities

# Punctuation that is always a piece of its own, as published.
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")  # noqa: RUF001

# The published tokenizer splits a comma off a number, outside the model. Where
# it is always a piece of its own there is nothing to split.
_SELF_CONTAINED_SYMBOLS = (*USER_DEFINED_SYMBOLS, ",")

# Sums are rounded differently when split among another number of threads, so
# their number is not the machine's.
_NUM_THREADS = 16

# Longer lines are left out by the trainer; its default is 4,192 bytes, and a
# corpus may have a book in a line.
_MAX_LINE_BYTES = 1 << 24

# Of training alone; roughly, measured on two busy cores.
_CHARACTERS_PER_SECOND = 350_000

# Room for sentences held out; enough to tell a hundredth of a per cent.
_HELD_OUT_SENTENCES = 20_000
_HELD_OUT_CHARACTERS = 2_000_000

# Uncovered characters in the report.
_MOST_UNCOVERED = 20


def main(config: TokenizerConfig) -> None:
    """Trains a vocabulary, or finds that it is there.

    Raises:
        UserError: For inputs that cannot do, or a vocabulary size that the
            text cannot give.
    """
    config.require("model_prefix")
    sources = corpus.find_inputs(config)
    num_bytes = sum(source.num_bytes for source in sources)
    with show_bytes("checking inputs", num_bytes) as bar:
        digests = sorted(corpus.check_and_digest(sources, config, bar.update))
    described = _describe(config, digests)
    if _is_up_to_date(config, described):
        logging.info("%s.model is up to date", config.model_prefix)
        return

    skipped: collections.Counter[str] = collections.Counter()
    with show_bytes("reading sentences", num_bytes) as bar:
        documents = corpus.read_documents(sources, config, bar.update, skipped)
        sample, held_out = _draw_sentences(config, documents)
    described["num_sentences"] = len(sample)
    described["num_characters"] = sample.num_characters
    # SentencePiece tells nothing of its progress that one could show.
    logging.info(
        "training on %.1fM characters: some %.0f s on two cores",
        sample.num_characters / 1e6,
        sample.num_characters / _CHARACTERS_PER_SECOND,
    )
    model = _train(config, sample)
    if len(held_out):
        report = _report(config, model, list(held_out.take()))
        _log_report(report)
        described["held_out"] = report
    _write_model(config.model_prefix, model, described)
    logging.info(
        "%s.model: %d pieces; skipped: %s",
        config.model_prefix,
        config.vocab_size,
        ", ".join(f"{n} {what}" for what, n in skipped.items()) or "nothing",
    )


def _describe(config: TokenizerConfig, digests: list[str]) -> dict[str, Any]:
    """All that the model depends on."""
    return {
        "settings": config.result_settings(),
        "inputs_sha256": sha256_of(json.dumps(digests).encode()),
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }


def _is_up_to_date(config: TokenizerConfig, described: dict[str, Any]) -> bool:
    """Whether the model wanted is there.

    Raises:
        UserError: If another is there, and is not to be replaced.
    """
    if not exists(config.model_prefix + ".model"):
        return False
    stored = load_json_if_any(config.model_prefix + ".json")
    with open_existing(config.model_prefix + ".model", "rb") as file:
        wanted = {**described, "model_sha256": sha256_of(file.read())}
    if stored and all(stored.get(n) == value for n, value in wanted.items()):
        return True
    if not config.overwrite:
        raise UserError(
            "model_prefix must not name a model of other settings or text",
            received=f"{config.model_prefix}.model",
            remedy="Choose another --model_prefix, or replace it by "
            "--overwrite.",
        )
    return False


def _draw_sentences(
    config: TokenizerConfig, documents: Iterable[list[str]]
) -> tuple[SentenceSample, SentenceSample]:
    """Sentences to train on, and others to report on.

    They are normalised for a published vocabulary, and raw for a
    self-contained one.
    """
    sample = SentenceSample(config.input_sentence_size, config.input_characters)
    held_out = SentenceSample(_HELD_OUT_SENTENCES, _HELD_OUT_CHARACTERS)
    is_raw = config.vocabulary_kind == SELF_CONTAINED
    for lines in documents:
        sentences = break_sentences(lines, config)
        priorities = draw_priorities(lines, len(sentences))
        for priority, sentence in zip(priorities, sentences, strict=True):
            if priority >= sample.threshold:
                continue
            text = normalize(sentence, config.do_lower_case)
            if not text:
                continue
            chosen = held_out if _is_held_out(text, config) else sample
            chosen.add(priority, sentence if is_raw else text)
    # Which ones came before the threshold fell is a matter of order.
    held_out.limit(sample.threshold)
    return sample, held_out


def _is_held_out(text: str, config: TokenizerConfig) -> bool:
    """By its letters, so that no sentence is held out from its equals."""
    digest = hashlib.blake2b(text.lower().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < config.holdout_fraction * 2**64


def _train(config: TokenizerConfig, sample: SentenceSample) -> bytes:
    """The content of a SentencePiece model file.

    Raises:
        UserError: If the text cannot give `vocab_size` pieces.
    """
    if config.vocabulary_kind == SELF_CONTAINED:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "rules.tsv")
            with open(path, "w", encoding="ascii") as file:
                file.write(format_rules(make_rules(config.do_lower_case)))
            model = _run_trainer(
                config,
                sample,
                user_defined_symbols=list(_SELF_CONTAINED_SYMBOLS),
                normalization_rule_tsv=path,
            )
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        proto.normalizer_spec.name = NORMALIZER_NAMES[config.do_lower_case]
        # The path is another one each time.
        proto.normalizer_spec.ClearField("normalization_rule_tsv")
        return proto.SerializeToString(deterministic=True)
    return _run_trainer(
        config, sample, user_defined_symbols=list(USER_DEFINED_SYMBOLS)
    )


def _run_trainer(
    config: TokenizerConfig, sample: SentenceSample, **options: Any
) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sample.take(),
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
            # The sample is drawn.
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
    """A refusal of the trainer in terms of the settings."""
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            "vocab_size must be at most what the text gives",
            received=config.vocab_size,
            remedy=f"Possible here: {largest[1]}, or give more text.",
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            "vocab_size must have room for the characters of the text",
            received=config.vocab_size,
            remedy=f"Needed here: more than {smallest[1]}, or a lower "
            "--character_coverage.",
        )
    return UserError("the text must do for a vocabulary", received=message)


def _report(
    config: TokenizerConfig, model: bytes, sentences: list[str]
) -> dict[str, Any]:
    """How a vocabulary does on sentences that it was not trained on.

    Args:
        config: The vocabulary's.
        model: Content of the model file.
        sentences: At least one, as `_draw_sentences` has them.

    Returns:
        Counts and shares, ready for JSON. Spaces are no characters here, and
        a character is covered if it has pieces of its own, be there bytes or
        not.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "spm.model")
        write_bytes(path, model)
        tokenizer = Tokenizer(path, config.do_lower_case)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    characters: collections.Counter[str] = collections.Counter()
    num_words = 0
    for sentence in sentences:
        words = processor.normalize(sentence).split(WORD_MARK)[1:]
        num_words += len(words)
        for word in words:
            characters.update(word)
    ids = tokenizer.encode_batch(sentences).ids
    pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
    # Every character of any piece is a piece of its own, too.
    alphabet = {piece for piece in pieces if len(piece) == 1}
    uncovered = collections.Counter(
        {c: n for c, n in characters.items() if c not in alphabet}
    )
    num_characters = characters.total()
    num_pieces = max(1, len(ids))  # there may be but invisible characters
    are_bytes = np.array(processor.is_byte(list(range(len(pieces)))))
    return {
        "num_sentences": len(sentences),
        "num_words": num_words,
        "num_characters": num_characters,
        "pieces_per_word": len(ids) / max(1, num_words),
        "characters_per_piece": num_characters / num_pieces,
        "characters_covered": 1 - uncovered.total() / max(1, num_characters),
        "byte_pieces": int(are_bytes[ids].sum()) / num_pieces,
        "unknown_pieces": int((ids == UNK_ID).sum()) / num_pieces,
        "most_uncovered": [
            {
                "code_point": f"U+{ord(character):04X}",
                "name": unicodedata.name(character, ""),
                "count": count,
            }
            for character, count in sorted(
                uncovered.items(), key=lambda item: (-item[1], item[0])
            )[:_MOST_UNCOVERED]
        ],
    }


def _log_report(report: dict[str, Any]) -> None:
    logging.info(
        "%d sentences held out: %.2f pieces a word, %.2f characters a piece, "
        "%.4f %% of the characters covered; of the pieces, %.3f %% are <unk> "
        "and %.3f %% bytes",
        report["num_sentences"],
        report["pieces_per_word"],
        report["characters_per_piece"],
        100 * report["characters_covered"],
        100 * report["unknown_pieces"],
        100 * report["byte_pieces"],
    )
    if report["most_uncovered"]:
        logging.info(
            "not covered: %s",
            "; ".join(
                f"{c['code_point']} {c['name']}, {c['count']} times"
                for c in report["most_uncovered"][:5]
            ),
        )


def _write_model(prefix: str, model: bytes, described: dict[str, Any]) -> None:
    """Writes PREFIX.vocab, .json and .model, each whole, .model last."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    vocabulary = "".join(
        f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
        for i in range(processor.vocab_size())
    )
    described = {**described, "model_sha256": sha256_of(model)}
    write_bytes(prefix + ".vocab", vocabulary.encode())
    write_bytes(prefix + ".json", json.dumps(described, indent=2).encode())
    write_bytes(prefix + ".model", model)


if __name__ == "__main__":
    flags.run(main, TokenizerConfig)
