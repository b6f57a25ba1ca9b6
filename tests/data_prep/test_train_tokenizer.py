"""Training of vocabularies."""

import gzip
import json
import pathlib
import re
import sys
import unicodedata

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from albert_tf.errors import UserError
from albert_tf.records.features import SPECIAL_PIECES
from albert_tf.records.tokenization import Tokenizer, normalize
from data_prep import train_tokenizer
from data_prep.config import TokenizerConfig
from data_prep.train_tokenizer import (
    SentenceSample,
    make_rules,
)

DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"

MULTILINGUAL = sorted(
    str(path) for path in pathlib.Path("tests/testdata").glob("multilingual-*")
)


GOOGLE_ALBERT = "tests/testdata/30k-clean.model"
SPELLINGS = "[CLS] a [SEP] [MASK] <pad> <unk> <s> </s> <0xE4> \u2581[MASK]"


def train(text_files, prefix, **settings):
    if isinstance(text_files, str):
        text_files = (text_files,)
    train_tokenizer.main(
        TokenizerConfig(
            input_file=tuple(text_files),
            model_prefix=str(prefix),
            on_bad_utf8="replace",
            **{"vocab_size": 700, **settings},
        )
    )
    return prefix.with_suffix(".model").read_bytes()


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with gzip.open(DEMO, "rb") as file:
        path.write_bytes(file.read(150_000))
    return str(path)


@pytest.fixture(scope="module")
def trained(text_file, tmp_path_factory):
    """The prefix of a model's files, and the bytes of the model."""
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    return prefix, train(text_file, prefix)


def test_model_has_the_ids_and_symbols_of_google_albert(trained):
    prefix, _ = trained
    tokenizer = Tokenizer(f"{prefix}.model")
    assert (tokenizer.kind, tokenizer.do_lower_case) == ("published", True)
    assert tokenizer.vocab_size == 700
    every = [tokenizer.id_to_piece(i) for i in range(700)]
    assert all(piece == piece.lower() for piece in every[5:])
    assert "▁the" in every
    pieces = every[:13]
    punctuation = ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"]
    assert pieces == [*SPECIAL_PIECES, *punctuation]
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    assert [i for i in range(700) if model.is_control(i)] == [0, 2, 3, 4]
    lines = (prefix.with_suffix(".vocab")).read_text("utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines[:13]] == pieces
    assert len(lines) == 700


def test_existing_model_is_replaced_only_with_overwrite(
    text_file, trained, tmp_path
):
    """With equal settings, it is not trained again."""
    prefix = tmp_path / "spm"
    for suffix in (".model", ".json"):
        prefix.with_suffix(suffix).write_bytes(
            trained[0].with_suffix(suffix).read_bytes()
        )
    path = prefix.with_suffix(".model")
    before = path.stat().st_mtime_ns
    assert train(text_file, prefix) == trained[1]
    assert path.stat().st_mtime_ns == before
    message = r"Different: vocab_size was 700 and is 600\. .*--overwrite"
    with pytest.raises(UserError, match=message):
        train(text_file, prefix, vocab_size=600)
    assert prefix.with_suffix(".model").read_bytes() == trained[1]
    train(text_file, prefix, vocab_size=600, overwrite=True)
    assert Tokenizer(f"{prefix}.model").vocab_size == 600
    settings = json.loads(prefix.with_suffix(".json").read_text())["settings"]
    assert settings["vocab_size"] == 600


def test_vocabulary_too_large_for_the_text_is_refused(tmp_path):
    """The error names the largest possible size, which then works."""
    path = tmp_path / "small.txt"
    path.write_text("A small text with few words. And few letters.\n" * 3)
    with pytest.raises(UserError, match="must not exceed the number") as raised:
        train(str(path), tmp_path / "spm")
    largest = int(re.search(r"possible: (\d+)", str(raised.value))[1])
    train(str(path), tmp_path / "spm", vocab_size=largest)
    assert Tokenizer(str(tmp_path / "spm.model")).vocab_size == largest


def test_sentences_with_the_reserved_sign_are_kept_and_counted(
    tmp_path, caplog
):
    """SentencePiece drops them without a word: "zyx" is only there."""
    path = tmp_path / "text.txt"
    path.write_text("zyx one \u2585 two\n" * 9 + "one two three\n" * 9)
    caplog.set_level("INFO")
    train(str(path), tmp_path / "spm", vocab_size=26)
    assert "9 sentences with \u2585" in caplog.text
    tokenizer = Tokenizer(str(tmp_path / "spm.model"))
    assert 1 not in tokenizer.encode_batch(["zyx"]).ids


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("\n \n\n", {}, "failed to train.*provide more"),
        (
            "abcdefghijklmnopqrstuvwxyz " * 9,
            {"vocab_size": 20},
            "to cover.*at least",
        ),
        ("a b", {"character_coverage": 0.97}, r"coverage.*0\.98.*0\.97"),
    ],
)
def test_text_or_settings_without_a_vocabulary_are_refused(
    content, settings, message, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        train(str(path), tmp_path / "spm", **settings)
    # Before the text is read, the prefix must be writable.
    with pytest.raises(OSError, match=r"text\.txt"):
        train(str(path), path / "spm")


def test_long_line_is_read(text_file, tmp_path):
    """By default, SentencePiece drops lines of more than 4,192 bytes."""
    path = tmp_path / "line.txt"
    with open(text_file, errors="replace") as file:
        path.write_text(" ".join(file.read().split()))
    train(str(path), tmp_path / "spm")
    assert Tokenizer(str(tmp_path / "spm.model")).vocab_size == 700
    described = json.loads((tmp_path / "spm.json").read_text())
    assert described["settings"]["vocabulary_kind"] == "published"


@pytest.mark.parametrize("kind", ["published", "self_contained"])
def test_commas_and_spelled_special_pieces_are_ordinary_text(
    text_file, tmp_path, kind
):
    """The training text has many numbers before commas, and special pieces. The
    published model has pieces such as "2011,", which the tokenizer splits; a
    self-contained model has none."""
    path = tmp_path / "text.txt"
    path.write_bytes(
        pathlib.Path(text_file).read_bytes()
        + b"".join(b"\nIn 2011, there were %d," % i for i in range(400))
        + b"".join(b"\n%d " % i + SPELLINGS.encode() for i in range(99))
    )
    settings = {"vocabulary_kind": kind, "byte_fallback": True}
    train(str(path), tmp_path / "spm", **settings)
    tokenizer = Tokenizer(f"{tmp_path}/spm.model")
    every = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
    pieces = [every[i] for i in tokenizer.encode_batch(["in 2011, 7,"]).ids]
    assert pieces[-1] == "," and pieces.count(",") == 2
    joined = any(re.search(r"\d,", piece) for piece in every)
    assert joined == (kind == "published")
    ids = tokenizer.encode_batch([SPELLINGS]).ids.tolist()
    assert ids and not set(ids) & {0, 1, 2, 3, 4, every.index("<0xE4>")}


def test_order_and_files_of_documents_have_no_influence(text_file, tmp_path):
    """With all documents, and with a sample."""
    documents = (
        pathlib.Path(text_file).read_text(errors="replace").split("\n\n")
    )
    assert len(documents) == 5
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("\n\n".join(documents[3:][::-1]))
    two.write_text("\n\n".join(documents[:3]))
    (tmp_path / "all.txt").write_text("\n\n".join(documents))
    for name, settings in (
        ("all", {}),
        ("sample", {"input_characters": 60_000}),
    ):
        described = []
        models = []
        for number, files in enumerate(
            [(str(tmp_path / "all.txt"),), (str(one), str(two))]
        ):
            prefix = tmp_path / f"{name}{number}"
            models.append(train(files, prefix, vocab_size=500, **settings))
            described.append(
                json.loads(prefix.with_suffix(".json").read_text())
            )
        assert models[0] == models[1]
    assert 59_000 < described[0]["num_characters"] <= 60_000

    # Other file names do not make the model outdated, which would be an error.
    last = two.rename(tmp_path / "a.txt")
    train((str(last), str(one)), prefix, vocab_size=500, **settings)


SENTENCES = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=2**64 - 1),
        st.text("ab", min_size=1, max_size=9),
    ),
    unique_by=lambda sentence: sentence[0],
    max_size=20,
)


@hypothesis.given(
    SENTENCES,
    st.integers(min_value=1, max_value=12),
    st.integers(min_value=1, max_value=60),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_sample_keeps_the_sentences_of_smallest_priority(
    sentences, max_sentences, max_characters
):
    """Up to the first that does not fit, so the order has no influence."""
    expected = []
    for _, text in sorted(sentences)[:max_sentences]:
        if sum(map(len, expected)) + len(text) > max_characters:
            break
        expected.append(text)
    sample = SentenceSample(max_sentences, max_characters)
    for priority, text in sentences:
        sample.add(priority, text)
    assert sample.num_characters == sum(map(len, expected))
    assert len(sample) == len(expected)
    assert list(sample.take()) == expected


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_rules_equal_the_normalisation_of_google_albert(do_lower_case):
    """For each character. google-research/albert normalises in Python, then in
    its model.

    Control characters are not compared: it keeps some, such as U+0080.
    """
    published = sentencepiece.SentencePieceProcessor(model_file=GOOGLE_ALBERT)
    rules = make_rules(do_lower_case)
    # Its model may not know characters of later Unicode versions.
    known = [
        c
        for c in map(chr, range(1, sys.maxunicode + 1))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Co", "Cs", "Cc")
    ]
    assert len(known) > 90_000
    texts = [normalize(f"x{c}x", do_lower_case) for c in known]
    for c, expected in zip(known, published.normalize(texts), strict=True):
        found = f"x{rules.get(c, c)}x"
        assert " ".join(found.split(" ")) == expected[1:].replace("▁", " "), (
            f"U+{ord(c):04X}"
        )


# --- models that normalise text themselves ------------------------------------

AWKWARD = [
    "",
    " \t ",
    "\u0301",
    " \u0301 \xa8 x",
    "a\u200bb\u200cc\u3000d\u2581e",
    "\uff21\uff22\uff08\u00bd\uff09 \ufb01\u00df \u0130I\u0131",
    "E\u0301COLE \u1e69 s\u0323\u0307 \x07bell\x80\ufeff",
    "in 2011, 5,000 and 1,2,3, we",
    "\u3131\u314f \ud55c\uae00 \u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea \u9f98",
]


@pytest.fixture(scope="module")
def lines():
    """Real text in eight languages, and rare characters."""
    text = [pathlib.Path(path).read_text("utf-8") for path in MULTILINGUAL]
    return [*"\n".join(text).splitlines(), *AWKWARD]


@pytest.fixture(scope="module")
def self_contained(tmp_path_factory):
    """A model by (do_lower_case, byte_fallback)."""
    directory = tmp_path_factory.mktemp("self_contained")
    paths = {}
    for case in ((True, True), (False, False)):
        prefix = directory / f"spm-{case[0]}"
        train(
            MULTILINGUAL,
            prefix,
            vocabulary_kind="self_contained",
            do_lower_case=case[0],
            byte_fallback=case[1],
            vocab_size=2600,
        )
        paths[case] = f"{prefix}.model"
    return paths


CASES = [(True, True), (False, False)]


def split_ids(encoded):
    return [part.tolist() for part in np.split(encoded.ids, encoded.ends[:-1])]


@pytest.mark.text
@pytest.mark.parametrize("case", CASES)
def test_every_runtime_gives_the_ids_of_a_self_contained_model(
    self_contained, lines, case
):
    """tensorflow-text and SentencePiece return our ids for raw text."""
    path = self_contained[case]
    tokenizer = Tokenizer(path)
    assert (tokenizer.kind, tokenizer.do_lower_case) == (
        "self_contained",
        case[0],
    )
    ours = split_ids(tokenizer.encode_batch(lines))
    import tensorflow_text

    theirs = tensorflow_text.SentencepieceTokenizer(
        pathlib.Path(path).read_bytes()
    )
    assert ours == theirs.tokenize(lines).to_list()
    plain = sentencepiece.SentencePieceProcessor(model_file=path)
    assert ours == plain.encode(lines)
    # Equal text gives an equal model: the temporary path of the rules is gone.
    proto = sentencepiece_model_pb2.ModelProto.FromString(
        pathlib.Path(path).read_bytes()
    )
    assert not proto.normalizer_spec.normalization_rule_tsv
    # The test is not trivial: normalisation changes the text.
    assert sum(map(len, ours)) > 20_000
    assert any(normalize(line, case[0]) != line for line in lines)


@pytest.mark.parametrize("case", CASES)
def test_text_is_normalised_once_and_as_for_google_albert(
    self_contained, lines, case
):
    """Except Hangul letters typed one by one, which are not composed, and
    control characters."""
    path = self_contained[case]
    tokenizer = Tokenizer(path)
    normalized = [tokenizer.normalize(line) for line in lines]
    assert [tokenizer.normalize(line) for line in normalized] == normalized
    plain = sentencepiece.SentencePieceProcessor(model_file=path)
    ids = split_ids(tokenizer.encode_normalized(normalized))
    assert ids == plain.encode(lines)
    published = sentencepiece.SentencePieceProcessor(model_file=GOOGLE_ALBERT)
    others = set("\u3131\u1112\x80")
    for line, found in zip(lines, normalized, strict=True):
        if not set(line) & others:
            expected = published.normalize(normalize(line, case[0])) or "▁"
            assert "▁" + found.replace(" ", "▁") == expected
    assert sum(bool(set(line) & others) for line in lines) == 2
    assert tokenizer.normalize("\u1112\u1161") == "\u1112\u1161"


def test_model_decides_do_lower_case(self_contained):
    cased, uncased = self_contained[False, False], self_contained[True, True]
    assert Tokenizer(cased, False).normalize("Ä B") == "A B"
    assert Tokenizer(uncased, True).normalize("Ä B") == "a b"
    with pytest.raises(UserError, match=r"--do_lower_case=false"):
        Tokenizer(cased, True)
    with pytest.raises(UserError, match=r"--do_lower_case=true"):
        Tokenizer(uncased, False)
