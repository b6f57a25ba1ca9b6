"""Vocabularies of symbols: DNA, amino acids and phonemes."""

import itertools
import json
import random

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.records.features import (
    CLS_ID,
    SEP_ID,
    SPECIAL_PIECES,
    read_metadata,
)
from albert_tf.records.tokenization import Tokenizer, make_symbols
from data_prep import build_tfrecords, train_tokenizer
from data_prep.config import RecordsConfig, TokenizerConfig
from data_prep.inspection import read_rows, read_shape, restore_tokens
from tests.helpers.tokenizer_folder import write_and_read

_WORDS = ["ðə", "kwˈɪk", "brˈaʊn", "fˈɑːks", "n̩", "sɛ̃t‿ɛ̃", "t͡ʃiːz"]  # noqa: RUF001
# Alphabet -> a line of text.
LINES = {
    "dna": lambda rng: "".join(rng.choices("ACGTacgtN", k=200)),
    "amino": lambda rng: "".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=90)),
    "ipa": lambda rng: " ".join(rng.choices(_WORDS, k=40)) + "?",
}


@pytest.fixture(scope="module", params=LINES)
def corpus(request, tmp_path_factory):
    """Lines of an alphabet, and the directory of their text and vocabulary."""
    folder = tmp_path_factory.mktemp(request.param)
    rng = random.Random(0)
    lines = [LINES[request.param](rng) for _ in range(60)]
    text = folder / "text.txt"
    text.write_text(
        "".join(f"{a}\n{b}\n\n" for a, b in itertools.pairwise(lines))
    )
    train(folder, symbols="text", character_coverage=1.0)
    return lines, folder


def train(folder, **settings):
    config = {
        "input_file": (str(folder / "text.txt"),),
        "model_prefix": str(folder / "spm"),
    }
    train_tokenizer.main(TokenizerConfig(**config | settings))
    return str(folder / "spm.model")


def build(folder, **settings):
    config = {
        "input_file": (str(folder / "text.txt"),),
        "output_dir": str(folder / "records"),
        "spm_model_file": str(folder / "spm.model"),
        "sentence_objective": "none",
        "max_seq_length": 64,
        "max_predictions_per_seq": 12,
        "dupe_factor": 1,
        "num_shards": 1,
        "num_workers": 1,
    }
    build_tfrecords.main(RecordsConfig(**config | settings))
    return folder / "records" / "train"


def test_a_word_mark_is_a_space(tmp_path):
    """Also for SentencePiece, which refuses a piece that is there twice."""
    (tmp_path / "spm.model").write_bytes(make_symbols("a \u2581b"))
    tokenizer = Tokenizer(str(tmp_path / "spm.model"))
    assert tokenizer.vocab_size == 5 + 3
    ids = tokenizer.encode_batch(["a b", "a\u2581b"])
    assert ids.ids.tolist() == [5, 6, 7, 5, 6, 7]


def test_each_character_is_a_token(corpus):
    lines, folder = corpus
    tokenizer = Tokenizer(str(folder / "spm.model"))
    assert tokenizer.vocab_size == 5 + len(set("".join(lines)))
    for text in [lines[0], lines[0][:9] + "[MASK]" + lines[0][9:]]:
        (row,) = tokenizer.encode(text, max_seq_length=512).input_ids
        before, *after = text.replace(" ", "▁").split("[MASK]")
        expected = [*before, *(["[MASK]", *after[0]] if after else [])]
        assert [tokenizer.id_to_piece(int(i)) for i in row[1:-1]] == expected
        assert tokenizer.decode(row) == text


def test_a_list_keeps_its_order_and_unknown_symbols_are_refused(tmp_path):
    (tmp_path / "text.txt").write_text("TGCA" * 500)
    (tmp_path / "list.txt").write_text("TG\nA CT\n")
    with pytest.raises(UserError, match="unknown: 'X' 3 times"):
        (tmp_path / "text.txt").write_text("TGCA" * 500 + "XXX")
        train(tmp_path, symbols=str(tmp_path / "list.txt"))
    (tmp_path / "text.txt").write_text("TGCA" * 500 + "X")
    path = train(tmp_path, symbols=str(tmp_path / "list.txt"))
    pieces = [Tokenizer(path).id_to_piece(i) for i in range(10)]
    assert pieces == [*SPECIAL_PIECES, "T", "G", "A", "▁", "C"]
    stored = json.loads((tmp_path / "spm.json").read_text())
    assert stored["num_unknown"] == 1
    # The list decides, not its path.
    (tmp_path / "list.txt").write_text("GTCA")
    with pytest.raises(UserError, match="symbols"):
        train(tmp_path, symbols=str(tmp_path / "list.txt"))
    (tmp_path / "text.txt").write_text("TGCA " * 50 + "X Y" * 9)
    with pytest.raises(UserError, match="symbols unknown"):
        build(tmp_path)


def test_words_end_at_spaces(corpus):
    """Without spaces, each symbol is masked by itself."""
    lines, folder = corpus
    directory = build(folder)
    tokenizer = Tokenizer(str(folder / "spm.model"))
    assert read_metadata(str(directory)).do_lower_case is False
    shard = str(next(directory.glob("*.tfrecord")))
    (rows,) = read_rows(shard, read_shape(shard), [])
    restored, is_masked = restore_tokens(rows)
    assert 0.1 < is_masked.sum() / (restored > 0).sum() < 0.2
    # A space separates the sentences of a document, if the text has spaces.
    separator = " " * (" " in lines[0])
    documents = [separator.join(pair) for pair in itertools.pairwise(lines)]
    first = tokenizer.decode(restored[0])
    assert any(first in document for document in documents)
    if separator:
        space = tokenizer.encode_batch([" "]).ids[0]
        for row, masked in zip(restored, is_masked, strict=True):
            special = (row == CLS_ID) | (row == SEP_ID)
            words = np.cumsum(special | np.roll((row == space) | special, 1))
            for word in set(words[masked]):
                assert masked[(words == word) & ~special].all()
    else:
        alone = is_masked[:, 1:-1] & ~is_masked[:, :-2] & ~is_masked[:, 2:]
        assert alone.any()


@pytest.mark.text
def test_the_graph_gives_the_same_ids(corpus):
    import tensorflow as tf

    from albert_tf.serving.text_tokenizer import TextTokenizer

    lines, folder = corpus
    path = str(folder / "spm.model")
    texts = [*lines[:3], f"{lines[0][:7]}[MASK] {lines[1]}", " A  C "]
    found = TextTokenizer(path).encode_with_masks(tf.constant(texts)).to_list()
    assert found == [Tokenizer(path).encode_with_masks(t) for t in texts]


@pytest.mark.interop
@pytest.mark.parametrize("stored", ["tokenizer.json", "spiece.model"])
def test_transformers_gives_the_same_ids_and_its_folder_is_read(
    corpus, stored, tmp_path
):
    """By each of the two files that may hold the vocabulary."""
    lines, folder = corpus
    vocabulary = str(folder / "spm.model")
    tokenizer = Tokenizer(vocabulary)
    theirs, path, _ = write_and_read(vocabulary, tmp_path, stored)
    again = Tokenizer(path)
    assert again.has_symbols
    for text in [
        *lines[:3],
        f"{lines[0][:7]} [MASK] {lines[1]}",
        "a  X\u03b1 b",
    ]:
        ids = tokenizer.encode_with_masks(text)
        assert theirs(text, add_special_tokens=False).input_ids == ids
        assert again.encode_with_masks(text) == ids
