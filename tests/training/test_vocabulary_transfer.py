"""Warm starts on records with another vocabulary."""

import collections
import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from albert_tf.errors import UserError
from albert_tf.training import warm_start
from albert_tf.training.train import train
from tests.helpers import tiny_run
from tests.helpers.warm_starts import (
    PIECE_BIAS,
    PIECES,
    assert_same_values,
    find_train_records,
    moments_and,
    other_config,
    pieces_of,
    report_of,
    values_of,
    weights_of,
)


@pytest.fixture(scope="module")
def continued(source, other_records, tmp_path_factory):
    """A run that starts from `source` and trains on `other_records`."""
    run_dir = tmp_path_factory.mktemp("continued")
    train(
        other_config(
            other_records,
            run_dir,
            init_checkpoint=str(source),
            init_optimizer_state=True,
        )
    )
    return run_dir


def test_rows_of_pieces_in_both_vocabularies_are_kept(
    source, continued, other_records, tmp_path
):
    """New pieces start at the mean of these, plus the values of a new run."""
    train(other_config(other_records, tmp_path))
    old, initial = values_of(source, 12), values_of(tmp_path, 0)
    now = values_of(continued, 0)
    pieces_there = pieces_of(source)
    pieces_here = pieces_of(other_records / "train")
    kept = [p for p in pieces_here if p in set(pieces_there)]
    assert 20 < len(kept) < 280
    for path in (PIECES, PIECE_BIAS):
        mean = np.mean([old[path][pieces_there.index(p)] for p in kept], axis=0)
        for i, piece in enumerate(pieces_here):
            if piece in kept:
                there = pieces_there.index(piece)
                expected = {p: old[p][there] for p in moments_and(path)}
            else:
                expected = dict.fromkeys(moments_and(path), 0.0)
                expected[path] = mean + initial[path][i]
            for name, value in expected.items():
                np.testing.assert_allclose(
                    now[name][i], value, atol=1e-7, err_msg=f"{name} {piece}"
                )
    assert not initial[PIECE_BIAS].any()
    others = set(old) - {*moments_and(PIECES), *moments_and(PIECE_BIAS), "step"}
    assert_same_values(now, old, others)

    counts = collections.Counter()
    for record in tf.data.TFRecordDataset(
        [str(p) for p in other_records.glob("train/*.tfrecord")]
    ).as_numpy_iterator():
        example = tf.train.Example.FromString(record)
        ids = example.features.feature["input_ids"].int64_list.value
        counts.update(pieces_here[i] for i in ids if i >= 5)
    report = report_of(continued)["pieces"]
    share = report.pop("kept_share_of_records")
    assert report == {
        "kept": len(kept),
        "new": 300 - len(kept),
        "dropped": 400 - len(kept),
    }
    assert 0.3 < share < 1
    assert share == pytest.approx(
        sum(counts[p] for p in kept) / counts.total(), rel=1e-6
    )


def test_new_values_are_a_function_of_the_seed(
    source, continued, other_records, tmp_path
):
    """Another seed changes the embeddings of new pieces, and nothing else."""
    train(
        other_config(
            other_records,
            tmp_path,
            init_checkpoint=str(source),
            init_optimizer_state=True,
            seed=2,
        )
    )
    one, other = values_of(continued, 0), values_of(tmp_path, 0)
    pieces_there = set(pieces_of(source))
    pieces_here = pieces_of(other_records / "train")
    kept = [piece in pieces_there for piece in pieces_here]
    assert_same_values(other, one, set(one) - {PIECES})
    differs = (other[PIECES] != one[PIECES]).any(axis=1)
    np.testing.assert_array_equal(differs, np.logical_not(kept))


def test_the_same_pieces_in_another_file_are_the_same(tiny_records, tmp_path):
    """The file has a field that SentencePiece does not know."""
    content = (tiny_records / "train/spiece.model").read_bytes()
    # Field 1000, a number.
    (tmp_path / "spiece.model").write_bytes(content + b"\xc0\x3e\x01")
    assert pieces_of(tmp_path) == pieces_of(tiny_records / "train")

    config = tiny_run.make_config(tiny_records, tmp_path, init_checkpoint="a")
    planned = warm_start.plan(
        config,
        find_train_records(tiny_records, config),
        weights_of(config.model, tmp_path / "spiece.model"),
    )
    assert planned.kept_pieces is None
    assert planned.report["pieces"]["new"] == 0


@pytest.fixture
def records_without_metadata(tiny_records, tmp_path):
    """Records without metadata, as google-research/albert writes them."""
    shutil.copytree(tiny_records / "train", tmp_path / "copy/train")
    (tmp_path / "copy/train/metadata.json").unlink()
    (tmp_path / "copy/train/spiece.model").unlink()
    return tmp_path / "copy"


@pytest.mark.parametrize("unknown", ["model", "records"])
def test_an_unknown_vocabulary_of_the_same_size_gives_a_warning(
    tiny_records, records_without_metadata, tmp_path, caplog, unknown
):
    records, vocabulary, whose = tiny_records, "", "VOCABULARY OF a IS NOT"
    remedy = "--init_vocabulary"
    if unknown == "records":
        records, whose = records_without_metadata, "OF the records IS NOT"
        vocabulary = tiny_records / "train/spiece.model"
        remedy = "data_prep.build_tfrecords"
    config = tiny_run.make_config(records, tmp_path, init_checkpoint="a")
    found = find_train_records(records, config)
    caplog.clear()
    planned = warm_start.plan(
        config, found, weights_of(config.model, vocabulary)
    )
    assert planned.kept_pieces is None
    assert not planned.report["vocabularies_known"]
    (warning,) = caplog.records
    assert whose in warning.getMessage()
    assert "400 pieces" in warning.getMessage()
    assert remedy in warning.getMessage()


def test_an_unknown_vocabulary_of_another_size_is_refused(
    tiny_records, other_records, records_without_metadata, tmp_path
):
    """Unless --init_vocabulary names it."""
    config = other_config(other_records, tmp_path, init_checkpoint="a")
    found = find_train_records(other_records, config)
    weights = weights_of(tiny_run.MODEL)
    with pytest.raises(
        UserError, match="400 pieces in the model and 300 in"
    ) as error:
        warm_start.plan(config, found, weights)
    assert "--init_vocabulary" in error.value.remedy
    named = other_config(
        other_records,
        tmp_path,
        init_checkpoint="a",
        init_vocabulary=str(tiny_records / "train/spiece.model"),
    )
    planned = warm_start.plan(named, found, weights)
    assert 20 < len(planned.kept_pieces.run_ids) < 280

    config = tiny_run.make_config(
        records_without_metadata,
        tmp_path,
        init_checkpoint="a",
        init_vocabulary=str(other_records / "train/spiece.model"),
    )
    found = find_train_records(records_without_metadata, config)
    weights = weights_of(dataclasses.replace(tiny_run.MODEL, vocab_size=300))
    with pytest.raises(
        UserError, match="300 pieces in the model and 400 in"
    ) as error:
        warm_start.plan(config, found, weights)
    assert "data_prep" in error.value.remedy


def test_a_vocabulary_of_another_size_than_the_model_is_refused(
    tiny_records, other_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        init_checkpoint="a",
        init_vocabulary=str(other_records / "train/spiece.model"),
    )
    found = find_train_records(tiny_records, config)
    with pytest.raises(UserError, match="300 pieces, and 400 in the model"):
        warm_start.plan(config, found, weights_of(config.model))


def test_a_vocabulary_that_contradicts_the_models_own_is_refused(
    tiny_records, tmp_path
):
    """Even with as many pieces, as if the records' vocabulary were given."""
    ours = tiny_records / "train/spiece.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(ours.read_bytes())
    model.pieces[100].piece, model.pieces[101].piece = (
        model.pieces[101].piece,
        model.pieces[100].piece,
    )
    theirs = tmp_path / "theirs.model"
    theirs.write_bytes(model.SerializeToString())
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        init_checkpoint="a",
        init_vocabulary=str(ours),
    )
    found = find_train_records(tiny_records, config)
    with pytest.raises(UserError, match=r"spiece\.model, and .*theirs\.model"):
        warm_start.plan(config, found, weights_of(config.model, theirs))
    (tmp_path / "same.model").write_bytes(ours.read_bytes())
    planned = warm_start.plan(
        config, found, weights_of(config.model, tmp_path / "same.model")
    )
    assert planned.kept_pieces is None


def test_records_next_to_another_vocabulary_are_refused(
    tiny_records, other_records, tmp_path
):
    copy = tmp_path / "copy"
    shutil.copytree(other_records, copy)
    shutil.copy(tiny_records / "train/spiece.model", copy / "train")
    config = other_config(copy, tmp_path, init_checkpoint="a")
    there = weights_of(tiny_run.MODEL, tiny_records / "train/spiece.model")
    with pytest.raises(UserError, match="vocabulary of the records next to it"):
        warm_start.plan(config, find_train_records(copy, config), there)
