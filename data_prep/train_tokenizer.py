r"""Trains a SentencePiece vocabulary with the published options.

    python -m data_prep.train_tokenizer \
        --input_file=corpus/*.txt.gz --model_prefix=build/spm --vocab_size=8000

Writes PREFIX.model; PREFIX.vocab, its pieces and their scores to read; and
PREFIX.json, what the model was made of. The same text and settings give the
same model.
"""

import collections
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sentencepiece
from absl import logging

from albert_tf import flags
from albert_tf.config import TokenizerConfig
from albert_tf.errors import UserError
from albert_tf.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
    sha256_of,
)
from albert_tf.files import (
    exists,
    load_json_if_any,
    open_existing,
    write_bytes,
)
from albert_tf.tokenization import Tokenizer, normalize
from data_prep import corpus
from data_prep.progress import show_bytes
from data_prep.sentence_breaking import break_sentences

# Punctuation that is always a piece of its own, as published.
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")  # noqa: RUF001

# Sums are rounded differently when split among another number of threads, so
# their number is not the machine's.
_NUM_THREADS = 16

# Longer lines are left out by the trainer; its default is 4,192 bytes, and a
# corpus may have a book in a line.
_MAX_LINE_BYTES = 1 << 24

# Of training alone; roughly, measured on two busy cores.
_CHARACTERS_PER_SECOND = 350_000

# Sentences of the closing line's pieces per word.
_SAMPLE_SENTENCES = 2000

_WITHOUT_INFLUENCE = ("input_file", "model_prefix", "overwrite")


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
    sample: list[str] = []
    sentences = _read_sentences(config, sources, num_bytes, skipped, sample)
    model = _train(config, sentences)
    _write_model(config.model_prefix, model, described)

    tokenizer = Tokenizer(config.model_prefix + ".model", config.do_lower_case)
    num_words = sum(len(text.split()) for text in sample)
    num_pieces = len(tokenizer.encode_normalized(sample).ids)
    logging.info(
        "%s.model: %d pieces, %.2f pieces per word in the first %d sentences; "
        "skipped: %s",
        config.model_prefix,
        tokenizer.vocab_size,
        num_pieces / num_words,
        len(sample),
        ", ".join(f"{n} {what}" for what, n in skipped.items()) or "nothing",
    )


def _describe(config: TokenizerConfig, digests: list[str]) -> dict[str, Any]:
    """All that the model depends on."""
    settings = config.to_dict()
    for name in _WITHOUT_INFLUENCE:
        del settings[name]
    return {
        "settings": settings,
        "inputs_sha256": sha256_of(json.dumps(digests).encode()),
        "sentencepiece": sentencepiece.__version__,
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
        if stored == {**described, "model_sha256": sha256_of(file.read())}:
            return True
    if not config.overwrite:
        raise UserError(
            "model_prefix must not name a model of other settings or text",
            received=f"{config.model_prefix}.model",
            remedy="Choose another --model_prefix, or replace it by "
            "--overwrite.",
        )
    return False


def _read_sentences(
    config: TokenizerConfig,
    sources: Sequence[corpus.Source],
    num_bytes: int,
    skipped: collections.Counter[str],
    sample: list[str],
) -> Iterator[str]:
    """Normalised sentences; the first ones are kept in `sample`."""
    num_characters = 0
    with show_bytes("reading sentences", num_bytes) as bar:
        for document in corpus.read_documents(
            sources, config, bar.update, skipped
        ):
            for sentence in break_sentences(document, config):
                text = normalize(sentence, config.do_lower_case)
                if not text:
                    continue
                if len(sample) < _SAMPLE_SENTENCES:
                    sample.append(text)
                num_characters += len(text)
                yield text
    # SentencePiece tells nothing of its progress that one could show.
    logging.info(
        "training on %.1fM characters: some %.0f s on two cores",
        num_characters / 1e6,
        num_characters / _CHARACTERS_PER_SECOND,
    )


def _train(config: TokenizerConfig, sentences: Iterator[str]) -> bytes:
    """The content of a SentencePiece model file.

    Raises:
        UserError: If the text cannot give `vocab_size` pieces, or what
            reading the text raised.
    """
    reading_error: list[BaseException] = []

    def stop_at_errors() -> Iterator[str | None]:
        try:
            yield from sentences
        except BaseException as error:
            # The trainer would go on with what it has, but for a sentence
            # that is no string.
            reading_error.append(error)
            yield None

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=stop_at_errors(),
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
            user_defined_symbols=list(USER_DEFINED_SYMBOLS),
            character_coverage=config.character_coverage,
            input_sentence_size=config.input_sentence_size,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=1,
        )
    except (RuntimeError, OSError) as error:
        if reading_error:
            raise reading_error[0] from None
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
