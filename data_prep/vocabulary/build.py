"""Builds the vocabulary of `python -m data_prep.train_tokenizer`."""

import collections
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import sentencepiece
from absl import logging

from albert_tf.errors import UserError
from albert_tf.io.files import (
    exists,
    load_json_if_any,
    open_existing,
    write_bytes,
)
from albert_tf.records.features import sha256_of
from albert_tf.records.tokenization import SELF_CONTAINED, normalize
from data_prep.config import TokenizerConfig
from data_prep.differences import describe_differences
from data_prep.progress import show_bytes
from data_prep.text import corpus
from data_prep.text.sentence_breaking import (
    break_sentences,
    check_language,
    describe_breaking,
)
from data_prep.versions import find_versions
from data_prep.vocabulary.report import log_report, make_report
from data_prep.vocabulary.sentence_sample import SentenceSample, draw_priorities
from data_prep.vocabulary.training import train_model
from data_prep.writability import check_writable

# Speed of SentencePiece's trainer, roughly, measured on two busy cores.
_CHARACTERS_PER_SECOND = 350_000

# Size of the held-out sample; it measures fractions to about 0.01 %.
_HELD_OUT_SENTENCES = 20_000
_HELD_OUT_CHARACTERS = 2_000_000


def build_vocabulary(config: TokenizerConfig) -> None:
    """Trains a vocabulary, unless the model file is up to date.

    Raises:
        UserError: For inputs that cannot be used, or a `vocab_size` that the
            text does not allow.
    """
    config.require("model_prefix")
    check_language(config)
    sources = corpus.find_inputs(config)
    model_file = config.model_prefix + ".model"
    if not exists(model_file):
        check_writable(model_file)
    num_bytes = sum(source.num_bytes for source in sources)
    with show_bytes("checking inputs", num_bytes) as bar:
        digests = sorted(corpus.check_and_digest(sources, config, bar.update))
    described = _describe(config, digests)
    if _is_up_to_date(config, described):
        logging.info("%s.model is up to date", config.model_prefix)
        return
    check_writable(model_file)

    skipped: collections.Counter[str] = collections.Counter()
    with show_bytes("reading sentences", num_bytes) as bar:
        documents = corpus.read_documents(sources, config, bar.update, skipped)
        sample, held_out = _draw_sentences(config, documents)
    described["num_sentences"] = len(sample)
    described["num_characters"] = sample.num_characters
    # SentencePiece reports no progress.
    logging.info(
        "training on %.1fM characters; takes about %.0f s on two cores",
        sample.num_characters / 1e6,
        sample.num_characters / _CHARACTERS_PER_SECOND,
    )
    model = train_model(config, sample.take())
    if len(held_out):
        report = make_report(config, model, list(held_out.take()))
        log_report(report)
        described["held_out"] = report
    _write_model(config.model_prefix, model, described)
    logging.info(
        "%s.model: %d pieces; skipped or split: %s",
        config.model_prefix,
        config.vocab_size,
        ", ".join(f"{n} {what}" for what, n in skipped.items()) or "nothing",
    )


def _describe(config: TokenizerConfig, digests: list[str]) -> dict[str, Any]:
    """Returns everything that decides the bytes of the model."""
    return {
        "settings": config.result_settings(),
        "inputs_sha256": sha256_of(json.dumps(digests).encode()),
        **find_versions(config),
        **describe_breaking(config),
    }


def _is_up_to_date(config: TokenizerConfig, described: dict[str, Any]) -> bool:
    """Returns whether the model file has this description.

    Raises:
        UserError: If the file has another description, and `overwrite` is
            false.
    """
    if not exists(config.model_prefix + ".model"):
        return False
    stored = load_json_if_any(config.model_prefix + ".json")
    with open_existing(config.model_prefix + ".model", "rb") as file:
        expected = {**described, "model_sha256": sha256_of(file.read())}
    if stored and all(stored.get(n) == value for n, value in expected.items()):
        return True
    if not config.overwrite:
        changes = f"{config.model_prefix}.json, which is missing"
        if stored:
            changes = (
                describe_differences(stored, expected) or "unknown settings"
            )
        raise UserError(
            f"{config.model_prefix}.model exists, but was not trained with "
            "these settings, this text and these versions",
            remedy=f"Different: {changes}. Choose another --model_prefix, or "
            "replace the model with --overwrite.",
        )
    return False


def _draw_sentences(
    config: TokenizerConfig, documents: Iterable[list[str]]
) -> tuple[SentenceSample, SentenceSample]:
    """Returns the sentences to train on, and the held-out sentences.

    Sentences are normalised for a published vocabulary, and raw for a
    self-contained vocabulary.
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
    # Without this limit, the report would depend on the order of the documents:
    # a held-out sentence of larger priority is added only if it comes early.
    held_out.limit(sample.threshold)
    return sample, held_out


def _is_held_out(text: str, config: TokenizerConfig) -> bool:
    """Decides by a hash, equal for sentences that differ only in case."""
    digest = hashlib.blake2b(text.lower().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < config.holdout_fraction * 2**64


def _write_model(prefix: str, model: bytes, described: dict[str, Any]) -> None:
    """Writes PREFIX.vocab, .json and .model, each atomically, .model last."""
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
