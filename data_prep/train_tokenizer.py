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
held-out sentences. The same text and settings give the same model, for any
order of the files. If the corpus is larger than --input_characters, the command
trains on a random sample of it, so that memory depends only on that setting.
"""

from albert_tf.config import flags
from data_prep.config import TokenizerConfig
from data_prep.vocabulary import build_vocabulary


def main(config: TokenizerConfig) -> None:
    """Trains a vocabulary, unless the model file is up to date."""
    build_vocabulary(config)


if __name__ == "__main__":
    flags.run(main, TokenizerConfig)
