import gzip
import json

import pytest
import sentencepiece

from albert_tf.config import TokenizerConfig
from albert_tf.errors import UserError
from albert_tf.features import SPECIAL_PIECES
from albert_tf.tokenization import Tokenizer
from data_prep import train_tokenizer

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with gzip.open(DEMO, "rb") as file:
        path.write_bytes(file.read(150_000))
    return str(path)


def train(text_file, prefix, **settings):
    train_tokenizer.main(
        TokenizerConfig(
            input_file=(text_file,),
            model_prefix=str(prefix),
            on_bad_utf8="replace",
            **{"vocab_size": 700, **settings},
        )
    )
    return prefix.with_suffix(".model").read_bytes()


@pytest.fixture(scope="module")
def trained(text_file, tmp_path_factory):
    """A prefix and the model there."""
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    return prefix, train(text_file, prefix)


def test_the_model_has_the_published_ids_and_symbols(trained):
    prefix, _ = trained
    tokenizer = Tokenizer(f"{prefix}.model")
    assert tokenizer.vocab_size == 700
    pieces = [tokenizer.id_to_piece(i) for i in range(13)]
    punctuation = ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"]
    assert pieces == [*SPECIAL_PIECES, *punctuation]
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    assert [i for i in range(700) if model.is_control(i)] == [0, 2, 3, 4]
    lines = (prefix.with_suffix(".vocab")).read_text("utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines[:13]] == pieces
    assert len(lines) == 700


def test_pieces_are_of_normalised_text(trained):
    prefix, _ = trained
    tokenizer = Tokenizer(f"{prefix}.model")
    pieces = [tokenizer.id_to_piece(i) for i in range(5, 700)]
    assert all(piece == piece.lower() for piece in pieces)
    assert "▁the" in pieces


def test_equal_text_and_settings_give_equal_models(
    text_file, trained, tmp_path
):
    _, model = trained
    assert train(text_file, tmp_path / "again") == model
    assert train(text_file, tmp_path / "more", vocab_size=701) != model


def test_a_model_that_is_there_is_used_again(text_file, trained):
    prefix, model = trained
    path = prefix.with_suffix(".model")
    before = path.stat().st_mtime_ns
    assert train(text_file, prefix) == model
    assert path.stat().st_mtime_ns == before


def test_a_model_of_other_settings_is_not_replaced_unasked(
    text_file, trained, tmp_path
):
    prefix = tmp_path / "spm"
    for suffix in (".model", ".json"):
        prefix.with_suffix(suffix).write_bytes(
            trained[0].with_suffix(suffix).read_bytes()
        )
    with pytest.raises(UserError, match="--overwrite"):
        train(text_file, prefix, vocab_size=600)
    assert prefix.with_suffix(".model").read_bytes() == trained[1]
    train(text_file, prefix, vocab_size=600, overwrite=True)
    assert Tokenizer(f"{prefix}.model").vocab_size == 600
    settings = json.loads(prefix.with_suffix(".json").read_text())["settings"]
    assert settings["vocab_size"] == 600


def test_a_vocabulary_larger_than_the_text_gives_is_refused(
    text_file, tmp_path
):
    """With the largest that is possible, which then works."""
    path = tmp_path / "small.txt"
    path.write_text("A small text with few words. And few letters.\n" * 3)
    with pytest.raises(UserError, match="vocab_size must be at most") as raised:
        train(str(path), tmp_path / "spm")
    largest = int(str(raised.value).split("Possible here: ")[1].split(",")[0])
    train(str(path), tmp_path / "spm", vocab_size=largest)
    assert Tokenizer(str(tmp_path / "spm.model")).vocab_size == largest


def test_a_vocabulary_smaller_than_the_alphabet_is_refused(text_file, tmp_path):
    with pytest.raises(UserError, match="room for the characters"):
        train(text_file, tmp_path / "spm", vocab_size=20)


def test_bad_utf8_stops_the_training(text_file, tmp_path):
    """Though the text before it would do for a vocabulary."""
    path = tmp_path / "latin1.txt"
    with open(text_file, "rb") as file:
        lines = file.read().splitlines()[:-1]
    path.write_bytes(b"\n".join([*lines, b"Il\xe9gal"]))
    config = TokenizerConfig(
        input_file=(str(path),),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=700,
    )
    with pytest.raises(UserError, match=f"line {len(lines) + 1}, at byte"):
        train_tokenizer.main(config)
    assert not list(tmp_path.glob("spm*"))


def test_text_of_blank_lines_is_refused(tmp_path):
    path = tmp_path / "blank.txt"
    path.write_text("\n \n\n")
    with pytest.raises(UserError, match="text"):
        train(str(path), tmp_path / "spm")


def test_a_line_of_a_whole_book_is_read(text_file, tmp_path):
    """The trainer's default leaves out lines beyond 4,192 bytes."""
    path = tmp_path / "line.txt"
    with open(text_file, errors="replace") as file:
        path.write_text(" ".join(file.read().split()))
    train(str(path), tmp_path / "spm")
    assert Tokenizer(str(tmp_path / "spm.model")).vocab_size == 700
