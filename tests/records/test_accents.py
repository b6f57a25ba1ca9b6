"""Accents and other combining marks of twelve languages are kept."""

import logging
import pathlib
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece

from albert_tf.errors import UserError
from albert_tf.records.questions import align
from albert_tf.records.tokenization import Tokenizer, describe_lost_accents
from data_prep import train_tokenizer
from data_prep.config import TokenizerConfig
from tests.helpers.tokenizer_folder import write_and_read

# Of article 1 of the Universal Declaration of Human Rights, by language, with
# capitals and letters that are difficult.
TEXTS = {
    "norwegian": "Alle mennesker er født frie og bør handle i brorskapets ånd.",
    "german": "Alle Menschen sind frei und gleich an Würde. Straße, ÜBERGRÖSSE",
    "french": "Tous les êtres humains naissent égaux. ÇA ET LÀ, un cœur naïf",
    "czech": "Všichni lidé rodí se svobodní. PŘÍLIŠ ŽLUŤOUČKÝ KŮŇ",
    "turkish": "Bütün insanlar eşit doğarlar. İSTANBUL ve ISPARTA, Iğdır",  # noqa: RUF001
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng",
    "yoruba": "Gbogbo ènìyàn ni a bí ní òmìnira; ẹ̀tọ́ WỌ́N",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में ज़मीन, क़लम",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์",
    "arabic": "يُولَدُ جَمِيعُ النَّاسِ أَحْرَارًا مُتَسَاوِينَ فِي الْكَرَامَةِ",
    "hebrew": "כָּל בְּנֵי הָאָדָם נוֹלְדוּ בְּנֵי חוֹרִין וְשָׁוִים בְּעֶרְכָּם",
    "ipa": "ɔl ˈhjuːmən ˈbiːɪŋz bɔ̃ʒuʁ, sɛ̃t‿ɛ̃, t͡ʃiːz, n̩, ŋ̊, ã̠",  # noqa: RUF001
}
FORMS = ("NFC", "NFD")


def train(folder, text, **settings):
    """The path of a vocabulary of all characters of a text."""
    path = folder / "text.txt"
    path.write_text(text)
    config = {
        "input_file": (str(path),),
        "model_prefix": str(folder / "spm"),
        "vocab_size": 260,
        "character_coverage": 1.0,
    }
    train_tokenizer.main(TokenizerConfig(**config | settings))
    return str(folder / "spm.model")


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def vocabulary(request, tmp_path_factory):
    words = " ".join(TEXTS.values()).split()
    return train(
        tmp_path_factory.mktemp("vocabulary"),
        "\n".join(words),
        keep_accents=True,
        do_lower_case=request.param,
    )


@pytest.mark.parametrize("language", TEXTS)
def test_no_character_is_lost(vocabulary, language):
    """Except that compatible characters become one, by NFKC."""
    tokenizer = Tokenizer(vocabulary)
    for form in FORMS:
        text = unicodedata.normalize(form, TEXTS[language])
        kept = unicodedata.normalize("NFKC", text)
        kept = kept.lower() if tokenizer.do_lower_case else kept
        assert tokenizer.decode(tokenizer.encode_batch([text]).ids) == kept


@pytest.mark.parametrize("language", TEXTS)
def test_tokens_cover_the_raw_text(vocabulary, language):
    tokenizer = Tokenizer(vocabulary)
    for form in FORMS:
        text = unicodedata.normalize(form, TEXTS[language])
        tokens = align(tokenizer, text)
        assert np.array_equal(tokens.ids, tokenizer.encode_batch([text]).ids)
        end = 0
        for token in zip(tokens.begins, tokens.ends, strict=True):
            assert token[0] <= end or text[end : token[0]].isspace()
            end = token[1]
        assert end == len(text)


def test_a_mark_after_a_mark_of_two_joins_their_letter(vocabulary):
    """U+0F73 is two marks, but does not say so."""
    tokenizer = Tokenizer(vocabulary)
    tokens = align(tokenizer, "a\u0f73\u0301")
    expected = tokenizer.encode_batch(["a\u0f73\u0301"]).ids
    assert np.array_equal(tokens.ids, expected)


@pytest.mark.text
def test_the_graph_gives_the_same_ids(vocabulary):
    import tensorflow as tf

    from albert_tf.serving.text_tokenizer import TextTokenizer

    texts = [
        unicodedata.normalize(form, text)
        for text in TEXTS.values()
        for form in FORMS
    ]
    found = TextTokenizer(vocabulary).encode(tf.constant(texts)).to_list()
    tokenizer = Tokenizer(vocabulary)
    assert found == [tokenizer.encode_batch([t]).ids.tolist() for t in texts]


def test_the_example_of_the_page_gives_the_same_ids(vocabulary):
    """For phones, without albert_tf; text that stays cased omits lower()."""
    page = pathlib.Path("docs/edge.md").read_text("utf-8")
    (function,) = re.findall(r"\ndef encode\(.*?\n\n", page, re.DOTALL)
    tokenizer = Tokenizer(vocabulary)
    if not tokenizer.do_lower_case:
        function = function.replace(".lower()", "")
    names = {
        "unicodedata": unicodedata,
        "pieces": sentencepiece.SentencePieceProcessor(vocabulary),
        "keeps_accents": True,
    }
    exec(function, names)
    for text in TEXTS.values():
        for form in FORMS:
            raw = unicodedata.normalize(form, text)
            ids = tokenizer.encode_batch([raw]).ids.tolist()
            assert names["encode"](raw) == ids


@pytest.mark.interop
@pytest.mark.parametrize("stored", ["tokenizer.json", "spiece.model"])
def test_transformers_gives_the_same_ids_and_its_folder_is_read(
    vocabulary, stored, tmp_path
):
    """By each of the two files that may hold the vocabulary."""
    tokenizer = Tokenizer(vocabulary)
    theirs, path, cased = write_and_read(vocabulary, tmp_path, stored)
    again = Tokenizer(path, False if cased else None)
    assert again.keep_accents
    for text in TEXTS.values():
        for form in FORMS:
            raw = unicodedata.normalize(form, text)
            ids = tokenizer.encode_batch([raw]).ids.tolist()
            assert theirs(raw, add_special_tokens=False).input_ids == ids
            assert again.encode_batch([raw]).ids.tolist() == ids


def test_a_text_that_loses_accents_is_warned_of(tmp_path, caplog):
    """By the first words that change; English is not."""
    with caplog.at_level(logging.WARNING):
        train(tmp_path, "\n".join(TEXTS.values()), vocab_size=170)
    (message,) = [m for m in caplog.messages if "accents are dropped" in m]
    assert "'ånd.' becomes 'and.'. Set --keep_accents" in message
    english = "All human beings are born free, in a café and elsewhere. " * 9
    assert not describe_lost_accents(english.replace("café", "cafe"))
    # One letter in 400 may lose its mark.
    assert not describe_lost_accents("a" * 400 + " é")
    assert describe_lost_accents("a" * 100 + " é").startswith("1.0%")


def test_a_self_contained_vocabulary_keeps_none(tmp_path):
    with pytest.raises(UserError, match="needs --vocabulary_kind=published"):
        train(
            tmp_path,
            "a",
            keep_accents=True,
            vocabulary_kind="self_contained",
        )
