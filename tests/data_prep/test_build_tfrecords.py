import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io import artifact
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    SENTENCE_LABEL,
    SEP_ID,
    SPECIAL_PIECES,
    read_metadata,
    stored_features,
)
from albert_tf.records.tokenization import Tokenizer
from data_prep import train_tokenizer
from data_prep.config import TokenizerConfig
from data_prep.segments import EVAL, TRAIN
from tests.helpers.small_builds import (
    LENGTH,
    VOCABULARY,
    build,
    make_config,
    read_files,
)

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


@pytest.fixture(scope="module")
def encoded_documents(documents):
    """The token ids of each document, as text: " 12 5 907 "."""
    tokenizer = Tokenizer(VOCABULARY)
    texts = []
    for document in documents:
        ids = tokenizer.encode_batch(document.split("\n")).ids
        texts.append(f" {' '.join(map(str, ids))} ")
    return texts


@pytest.fixture(scope="module")
def repeated(documents, tmp_path_factory):
    """Records of one document ten times, in a single shard."""
    directory = tmp_path_factory.mktemp("repeated")
    path = directory / "text.txt"
    path.write_text("\n\n".join([documents[0]] * 10), encoding="utf-8")
    return build(
        directory / "out",
        path,
        num_shards=1,
        holdout_fraction=0.0,
        dupe_factor=1,
    )


def read_examples(directory, split, masking="static"):
    """Returns the features of all examples of a split, and the records."""
    paths = sorted(map(str, (directory / split).glob("*.tfrecord")))
    records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    shape = make_config("none")
    spec = {
        feature.name: tf.io.FixedLenFeature(
            [feature.length(shape)], feature.dtype
        )
        for feature in stored_features(masking)
    }
    parsed = tf.io.parse_example(tf.constant(records), spec)
    return {name: value.numpy() for name, value in parsed.items()}, records


def restore(examples):
    """Returns `input_ids` before masking."""
    ids = examples["input_ids"].copy()
    rows, slots = np.nonzero(examples["masked_lm_weights"])
    ids[rows, examples["masked_lm_positions"][rows, slots]] = examples[
        "masked_lm_ids"
    ][rows, slots]
    return ids


def find_segments(directory, encoded_documents):
    """Yields the label, the segments, and the documents that have both."""
    examples, _ = read_examples(directory, EVAL)
    labels = examples[SENTENCE_LABEL][:, 0]
    for row, label in zip(restore(examples), labels, strict=True):
        middle, last = np.flatnonzero(row == SEP_ID)
        first = f" {' '.join(map(str, row[1:middle]))} "
        second = f" {' '.join(map(str, row[middle + 1 : last]))} "
        found = [t for t in encoded_documents if first in t and second in t]
        yield label, first, second, found


def test_label_says_whether_segments_are_swapped(built, encoded_documents):
    """Finds the segments in the documents, and skips ambiguous ones."""
    seen = [0, 0]
    for label, first, second, found in find_segments(built, encoded_documents):
        assert found, "the segments are not from the same document"
        if any(t.count(first) > 1 or t.count(second) > 1 for t in found):
            continue
        swapped = found[0].index(first) > found[0].index(second)
        assert swapped == bool(label)
        seen[label] += 1
    assert min(seen) > 20


def test_copies_of_a_document_have_no_example_in_common(built, repeated):
    """Copies by dupe_factor, and equal documents of the text."""
    for directory in (built, repeated):
        _, records = read_examples(directory, TRAIN)
        assert len(set(records)) == len(records) > 200


def test_held_out_documents_are_in_no_training_example(built, documents):
    """Documents are recognised by pieces that no other document has."""
    tokenizer = Tokenizer(VOCABULARY)
    sets = [
        set(tokenizer.encode_batch(d.split("\n")).ids.tolist())
        for d in documents
    ]
    counts = np.bincount([i for s in sets for i in s], minlength=30000)
    found = {
        split: set(restore(read_examples(built, split)[0]).ravel().tolist())
        for split in (TRAIN, EVAL)
    }
    num_eval = 0
    for pieces in sets:
        rare = {i for i in pieces if counts[i] == 1}
        in_train = len(rare & found[TRAIN])
        in_eval = len(rare & found[EVAL])
        assert min(in_train, in_eval) == 0 < max(in_train, in_eval)
        num_eval += in_eval > 0
    assert num_eval == read_metadata(str(built / EVAL)).num_documents > 0


def assert_same_shards(directory, expected, split):
    """Vocabulary and metadata may differ."""
    found = read_files(directory / split)
    for name, content in read_files(expected / split).items():
        assert not name.endswith(".tfrecord") or found[name] == content


def test_workers_and_file_order_have_no_influence(built, documents, tmp_path):
    """The same documents in another order and in three files, built by three
    processes instead of one."""
    again = documents[::-1]
    for i in range(3):
        path = tmp_path / f"{i}.txt"
        path.write_text("\n\n".join(again[i::3]), encoding="utf-8")
    other = build(tmp_path / "out", tmp_path / "*.txt", num_workers=3)
    for split in (TRAIN, EVAL):
        assert_same_shards(other, built, split)


def test_deduplicate_gives_the_records_of_unique_documents(
    built, documents, tmp_path
):
    """Every third document is repeated, in capitals and with other spaces."""
    duplicated = [d.upper().replace(" ", "  ") for d in documents[::3]]
    path = tmp_path / "text.txt"
    text = "\n\n".join([*duplicated, *documents])
    path.write_text(text, encoding="utf-8")
    out = build(tmp_path / "out", path, deduplicate=True)
    duplicates = 0
    for split in (TRAIN, EVAL):
        assert_same_shards(out, built, split)
        metadata = read_metadata(str(out / split))
        duplicates += metadata.num_duplicate_documents
        assert (
            metadata.num_documents
            == read_metadata(str(built / split)).num_documents
        )
    assert duplicates == len(duplicated)


def test_examples_of_duplicate_documents_are_not_adjacent(repeated):
    """The examples of ten equal documents are spread over the shard."""
    metadata = read_metadata(str(repeated / TRAIN))
    assert metadata.num_documents == 10
    assert metadata.num_duplicate_documents == 9
    examples, _ = read_examples(repeated, TRAIN)
    ids = restore(examples)
    assert len(ids) > 200
    equal_neighbours = (ids[1:] == ids[:-1]).all(axis=1).sum()
    # In random order, 9 pairs of neighbours are equal on average.
    assert equal_neighbours < 4 * 9 * len(ids) / (len(ids) - 1)


@pytest.fixture(scope="module")
def nsp(text_file, tmp_path_factory):
    settings = {"sentence_objective": "nsp", "dupe_factor": 10}
    return build(tmp_path_factory.mktemp("nsp") / "out", text_file, **settings)


def test_half_of_the_next_sentences_are_from_another_document(
    nsp, encoded_documents
):
    labels = []
    for label, first, second, found in find_segments(nsp, encoded_documents):
        labels.append(label)
        if label:
            # A short segment may be in many documents.
            shorter = min(first.count(" "), second.count(" "))
            assert not found or shorter < 7
        else:
            assert any(t.index(first) < t.rindex(second) for t in found)
    margin = 4 * np.sqrt(0.25 / len(labels))
    assert abs(np.mean(labels) - 0.5) < margin < 0.3
    assert read_metadata(str(nsp / EVAL)).sentence_objective == "nsp"


def test_the_form_of_an_example_does_not_tell_its_next_sentence_label(nsp):
    """Of one half of the examples, tables count the labels by the number of
    tokens, of the complete example and of its second segment, and by the last
    token. They predict the labels of the other half like a coin."""
    examples, _ = read_examples(nsp, TRAIN)
    ids = restore(examples)
    labels = examples[SENTENCE_LABEL][:, 0]
    assert len(labels) > 9_000
    lengths = examples["input_mask"].sum(axis=1)
    for values in (
        lengths,
        examples["segment_ids"].sum(axis=1),
        ids[np.arange(len(ids)), lengths - 2],
    ):
        counts = np.zeros((values.max() + 1, 2))
        np.add.at(counts, (values[::2], labels[::2]), 1)
        predicted = counts[values[1::2]].argmax(axis=1)
        assert np.mean(predicted == labels[1::2]) < 0.53


def test_without_sentence_objective_examples_have_one_segment(
    text_file, tmp_path, caplog
):
    with caplog.at_level("INFO", logger="absl"):
        out = build(tmp_path / "out", text_file, sentence_objective="none")
    assert "positions filled; skipped or split: " in caplog.text
    examples, _ = read_examples(out, TRAIN)
    ids = restore(examples)
    assert ((ids == SEP_ID).sum(axis=1) == 1).all()
    assert not examples["segment_ids"].any()
    assert not examples[SENTENCE_LABEL].any()
    lengths = examples["input_mask"].sum(axis=1)
    assert np.mean(lengths == LENGTH) > 0.5


def test_dynamic_records_have_no_masks(built, text_file, tmp_path):
    """train/ has the static records before their masking. eval/ is static."""
    out = build(tmp_path / "out", text_file, masking="dynamic")
    assert_same_shards(out, built, EVAL)
    static, _ = read_examples(built, TRAIN)
    dynamic, records = read_examples(out, TRAIN, "dynamic")
    assert set(tf.train.Example.FromString(records[0]).features.feature) == set(
        dynamic
    )
    np.testing.assert_array_equal(dynamic["input_ids"], restore(static))
    metadata = read_metadata(str(out / TRAIN))
    assert (metadata.masking, metadata.num_masked) == ("dynamic", 0)
    evaluated = read_metadata(str(out / EVAL))
    assert (evaluated.masking, evaluated.dupe_factor) == ("static", 1)


@pytest.mark.parametrize("overwrite", [False, True])
def test_existing_records_are_not_built_again(
    built, text_file, overwrite, monkeypatch
):
    """Their directory need not be writable."""
    monkeypatch.setattr(artifact, "check_writable", None)
    before = {p: p.stat().st_mtime_ns for p in built.rglob("*")}
    build(built, text_file, num_workers=2, overwrite=overwrite)
    assert {p: p.stat().st_mtime_ns for p in built.rglob("*")} == before


def test_a_build_does_not_read_its_own_files(documents, tmp_path):
    """Of an output directory, and a vocabulary, that the glob matches."""
    (tmp_path / "a.txt").write_text(documents[0], encoding="utf-8")
    model = shutil.copy(VOCABULARY, tmp_path / "spm.model")
    (tmp_path / "spm.vocab").write_text("<pad>\t0\n")
    settings = {"spm_model_file": str(model), "holdout_fraction": 0}
    build(tmp_path / "out", tmp_path / "**", **settings)
    before = read_files(tmp_path)
    build(tmp_path / "out", tmp_path / "**", **settings)
    assert read_files(tmp_path) == before


FORMS = [
    ("lines", {}, ""),
    ("blank lines", {}, "100% of the documents have one sentence"),
    ("CR CR LF", {}, "100% of the documents have one sentence"),
    (
        "paragraphs",
        {},
        "sentence has 205 tokens.*--sentence_breaker=sentencex",
    ),
    ("paragraphs", {"sentence_breaker": "sentencex"}, ""),
]


@pytest.mark.parametrize(("form", "settings", "warning"), FORMS)
def test_text_whose_form_defeats_the_objective_is_a_warning(
    documents, tmp_path, caplog, form, settings, warning
):
    lines = [line for line in documents[0].split("\n") if line.strip()][:180]
    if form == "paragraphs":
        lines = [" ".join(lines[i : i + 6]) for i in range(0, 180, 6)]
    end = {"blank lines": "\n\n", "CR CR LF": "\r\r\n"}.get(form, "\n")
    path = tmp_path / "a.txt"
    path.write_bytes(end.join(lines).encode())
    caplog.set_level("INFO")
    out = build(tmp_path / "out", path, holdout_fraction=0, **settings)
    if not warning:
        found = read_metadata(str(out / TRAIN)).text_form
        assert found["documents"] == 1
        assert 0.9 < found["sentences"] / 180 < 1.1
    usual = re.compile(r".*\(usual: .*")
    assert re.search(warning, caplog.text)
    warned = [r for r in caplog.records if usual.match(r.getMessage())]
    assert len(warned) == bool(warning)


@pytest.mark.parametrize("setting", ["output_dir", "scratch_dir"])
def test_unwritable_directories_are_found_before_the_text_is_read(
    tmp_path, setting
):
    path = tmp_path / "text.txt"
    path.write_bytes(b"not UTF-8: \xff\n")
    settings = {"output_dir": tmp_path / "out", setting: str(path / "below")}
    with pytest.raises(OSError, match=r"text\.txt"):
        build(settings.pop("output_dir"), path, **settings)


def test_records_of_other_settings_are_replaced_only_with_overwrite(
    documents, tmp_path
):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents[:9]), encoding="utf-8")
    output_dir = tmp_path / "out"
    build(output_dir, path, holdout_fraction=0.3)
    before = read_files(output_dir)
    message = r"Different: seed was \d+ and is 2\. .*--overwrite"
    with pytest.raises(UserError, match=message):
        build(output_dir, path, holdout_fraction=0.3, seed=2)
    path.write_text("\n\n".join(documents[:8]), encoding="utf-8")
    with pytest.raises(UserError, match=r"Different: the text.*--overwrite"):
        build(output_dir, path, holdout_fraction=0.3)
    assert read_files(output_dir) == before
    build(output_dir, path, num_shards=2, holdout_fraction=0, overwrite=True)
    assert len(list((output_dir / TRAIN).glob("*.tfrecord"))) == 2
    assert not list((output_dir / EVAL).iterdir())


def test_a_vocabulary_that_does_not_suit_the_text_is_named(tmp_path, caplog):
    """Of Thai words, only the word marks have pieces."""
    text = tmp_path / "text.txt"
    text.write_text(("ภาษาไทย " * 9 + "\n") * 9, encoding="utf-8")
    settings = {"holdout_fraction": 0, "num_shards": 1}
    directory = build(tmp_path / "out", text, **settings) / TRAIN
    assert "50.0% of the tokens are <unk>" in caplog.text
    assert read_metadata(str(directory)).vocabulary_use["unknown"] == 0.5
    caplog.clear()
    text.write_text("A plain text.\nIts second line.\n", encoding="utf-8")
    build(tmp_path / "suits", text, **settings)
    assert "suit" not in caplog.text


def test_a_cased_vocabulary_of_lower_cased_text_is_named(tmp_path, caplog):
    """The settings file next to it, if any, refuses it before."""
    text = tmp_path / "text.txt"
    text.write_text("Ann and Bob met Carl.\nDora and Emil came.\n" * 9)
    config = TokenizerConfig(
        input_file=(str(text),),
        model_prefix=str(tmp_path / "cased"),
        do_lower_case=False,
        vocab_size=31,
    )
    train_tokenizer.main(config)
    settings = {"holdout_fraction": 0, "num_shards": 1}
    settings["spm_model_file"] = str(tmp_path / "cased.model")
    with pytest.raises(UserError, match=r"cased\.json says.*_case=false"):
        build(tmp_path / "out", text, **settings)
    build(tmp_path / "cased", text, do_lower_case=False, **settings)
    assert "suit" not in caplog.text
    (tmp_path / "cased.json").unlink()
    build(tmp_path / "out", text, **settings)
    assert "of the pieces have capitals" in caplog.text


# The text, changes of the settings, the refusal.
DASK = {"dask_scheduler": "tcp://a:1"}
REFUSALS = [
    (
        "Word.",
        {"holdout_fraction": 0},
        r"at least two words.*5 documents.*a\.txt; .*e\.txt\.",
    ),
    ("", {"holdout_fraction": 1e-9}, "holdout_fraction"),
    ("", {"holdout_fraction": 0.999999}, "holdout_fraction"),
    ("", {"scratch_dir": "gs://b/s"}, r"scratch_dir must .*gs://b/s"),
    ("", {"output_dir": "gs://bucket/records", **DASK}, "set --scratch_dir"),
    ("", {"output_dir": "records", **DASK}, "needs absolute paths"),
    ("", {"scratch_dir": "a", **DASK}, "needs absolute paths"),
    ("", {"masking": "both"}, "must be one of static, dynamic"),
]


@pytest.mark.parametrize(("text", "settings", "message"), REFUSALS)
def test_builds_that_cannot_work_are_refused(
    documents, tmp_path, text, settings, message
):
    for name in "abcde" if text else "a":
        (tmp_path / f"{name}.txt").write_text(text or documents[0])
    settings = {"output_dir": tmp_path / "out", **settings}
    with pytest.raises(UserError, match=message):
        build(settings.pop("output_dir"), tmp_path / "*.txt", **settings)
    assert not list(tmp_path.rglob("*.tfrecord"))


def test_documents_of_one_word_are_skipped_and_counted(documents, tmp_path):
    path = tmp_path / "text.txt"
    short = ["Word", "\u0301\n\u0301", "Another"]
    path.write_text("\n\n".join([*short, documents[0]]), encoding="utf-8")
    build(tmp_path / "out", path, holdout_fraction=0.0)
    metadata = read_metadata(str(tmp_path / "out" / TRAIN))
    assert metadata.skipped["documents of less than two words"] == 3
    assert metadata.num_documents == 1


def test_no_segment_is_empty_although_a_sentence_is(tmp_path):
    """The first sentence has a combining mark only, so it has no token."""
    path = tmp_path / "text.txt"
    path.write_text("\u0301\nIt rains today.\nWe stay in.\n", encoding="utf-8")
    build(tmp_path / "out", path, dupe_factor=40, holdout_fraction=0.0)
    examples, _ = read_examples(tmp_path / "out", TRAIN)
    for ids in examples["input_ids"]:
        first, second = np.flatnonzero(ids == SEP_ID)
        assert first > 1 and second > first + 1


def test_a_limit_that_masks_fewer_tokens_than_wanted_is_a_warning(caplog):
    for fraction, warns in ((0.1, False), (0.3, True)):
        caplog.clear()
        with pytest.raises(UserError, match="no_text"):
            build("none", "no_text", masked_lm_prob=fraction)
        wanted = f"set --max_predictions_per_seq={round(fraction * LENGTH)}"
        assert (wanted in caplog.text) == warns


def test_unusual_text_and_spellings_of_special_pieces_are_text(tmp_path):
    """Each text is a document; the tokens spell the letters of the pieces.
    Text of any language builds."""
    pieces = [*SPECIAL_PIECES, "<s>", "</s>", "<mask>"]
    texts = [
        "And \x01\x02\x07\x08 \x1b[31m controls \x7f \x9d.\nTwo.",
        "Joined \u200d \u200b \u2060 \ufeff \u202e letters.\nTwo lines.",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 a family.\nTwo \ud7ff.",
        "Private \ue000 and \U0010ffff and \ufffe no characters.\nTwo.",
        "Za\u0300\u0301\u0302\u0303\u0304\u0305lgo!\n\u0301\u0301\nTwo.",
        "ﬁ ½ ① Ⅷ ㎏ ﷽ İ ß ſ ς.\nTwo lines.",  # noqa: RUF001
        "“Quotes” — ‘and’ dashes…\nTwo lines.",  # noqa: RUF001
        *(f"A {p} b{p}c {p}{p}.\n{p} Two ▁{p}▁ lines." for p in pieces),
    ]
    languages = sorted(TESTDATA.glob("multilingual-*.txt"))
    assert len(languages) >= 8
    languages.append(TESTDATA / "awkward-blns.txt")
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    settings = {"masking": "dynamic", "dupe_factor": 1, "holdout_fraction": 0}
    for name, paths in (("few", [path]), ("all", [path, *languages])):
        out = build(tmp_path / name, *paths, **settings)
        ids = read_examples(out, TRAIN, "dynamic")[0]["input_ids"]
        assert ((ids == CLS_ID).sum(axis=1) == 1).all()
        assert ((ids == SEP_ID).sum(axis=1) == 2).all()
        assert not (ids == MASK_ID).any()
        # All padding is at the end.
        assert (np.diff((ids == 0).astype(int), axis=1) >= 0).all()
        if name == "few":
            metadata = read_metadata(str(out / TRAIN))
            assert metadata.num_documents == len(texts)
        tokenizer = Tokenizer(VOCABULARY)
        spelled = "".join(
            tokenizer.id_to_piece(i) for i in ids.ravel() if i > 4
        )
        for piece in pieces:
            letters = "".join(c for c in piece.lower() if c.isalpha())
            assert letters in spelled.replace("▁", "")
