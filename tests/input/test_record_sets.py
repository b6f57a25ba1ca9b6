import dataclasses
import json
import shutil

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import record_sets
from albert_tf.input.record_format import parse_records, pretraining_format
from albert_tf.records.features import features_to_read
from tests.helpers import tiny_run


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(tiny_records, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def records(config):
    return record_sets.find_records(
        {"input_file": config.data.input_file}, config
    )


def copy(source, target, **changes):
    """Copies records, changes their metadata, and returns a glob."""
    shutil.copytree(source, target)
    path = target / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | changes))
    return f"{target}/*.tfrecord"


def test_records_of_several_directories_or_datasets_alternate(
    tiny_records, config
):
    """A build shuffles only its own records. A file of several datasets belongs
    to the first of them."""
    one, two, three = sorted(map(str, (tiny_records / "train").glob("*d")))
    (held_out,) = map(str, (tiny_records / "eval").glob("*d"))
    for changes, sets in (
        (
            {"input_file": (one, two, three, held_out)},
            ((held_out,), (one, two, three)),
        ),
        (
            {
                "input_file": (),
                "dataset": (f"a={two},{one}", f"b={one},{three}", f"c={two}"),
                "data_schedule": "0:a+b+c",
            },
            ((one, two), (three,)),
        ),
    ):
        found = record_sets.find_training_data(config.replace(**changes))
        assert found.phases[0].records.sets == sets
        assert found.phases[0].records.files == tuple(sorted(sum(sets, ())))


def test_the_unigram_entropy_of_several_sets_is_their_mean(
    tiny_records, config, tmp_path
):
    """Weighted by tokens; the second set has three times as many."""
    files = [
        copy(
            tiny_records / "train",
            tmp_path / name,
            num_pieces=num_pieces,
            unigram_entropy_nats=entropy,
        )
        for name, num_pieces, entropy in (("a", 100, 6.0), ("b", 300, 7.0))
    ]
    found = record_sets.find_records({"input_file": files}, config)
    assert found.metadata.unigram_entropy_nats == 6.75


def test_held_out_records_have_the_objective_that_the_settings_name(
    tiny_records, tmp_path, config
):
    """That of the run, or of --eval_sentence_objective."""
    files = copy(
        tiny_records / "eval", tmp_path / "eval", sentence_objective="nsp"
    )

    def find(**training):
        return record_sets.find_held_out(
            config.replace(eval_input_file=(files,), mode="eval", **training)
        )

    assert find(eval_sentence_objective="nsp").num_records
    for training in (
        {},
        {"eval_sentence_objective": "sop"},
        {"eval_sentence_objective": "sop", "sentence_objective": "none"},
    ):
        with pytest.raises(UserError, match="sentence_objective"):
            find(**training)
    with pytest.raises(UserError, match="needs --mode=eval"):
        dataclasses.replace(config.training, eval_sentence_objective="nsp")


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary_sha256", "0" * 64), ("do_lower_case", False)],
)
def test_a_held_out_set_with_another_vocabulary_is_refused(
    tiny_records, config, records, tmp_path, name, value
):
    other = tmp_path / "eval"
    files = copy(tiny_records / "eval", other, **{name: value})
    held_out = record_sets.find_records({"eval_input_file": [files]}, config)
    pair = f"{other} must agree with {tiny_records}/train. Received: {name} "
    with pytest.raises(UserError, match=f"{pair}{value!r} and") as error:
        record_sets.check_held_out(records, held_out)
    assert "the same --spm_model_file and --do_lower_case" in str(error.value)
    both = [*config.data.input_file, files]
    with pytest.raises(
        UserError, match=f"must agree with .*{name} .*Build both"
    ):
        record_sets.find_records({"input_file": both}, config)


@pytest.mark.parametrize("kind", ["same", "copy", "link"])
def test_training_records_are_refused_as_held_out_set(
    tiny_records, records, config, tmp_path, kind
):
    """Also under another path: by the checksum in the metadata, or, without
    metadata, by the file."""
    other = tmp_path / "other"
    files = f"{other}/*.tfrecord"
    if kind == "same":
        files = f"{tiny_records}/train/*.tfrecord"
    elif kind == "copy":
        copy(tiny_records / "train", other)
    else:
        records = dataclasses.replace(records, checksums={})
        other.symlink_to(tiny_records / "train")
    held_out = record_sets.find_records({"eval_input_file": [files]}, config)
    with pytest.raises(UserError, match="no file of input_file"):
        record_sets.check_held_out(records, held_out)


def test_records_without_metadata_are_counted_and_read(
    tiny_records, config, records, tmp_path
):
    """google-research/albert writes such records."""
    for file in (tiny_records / "train").glob("*.tfrecord"):
        shutil.copy(file, tmp_path)
    found = record_sets.find_records(
        {"input_file": [f"{tmp_path}/*.tfrecord"]}, config
    )

    assert found.metadata is None
    assert list(found.counts.values()) == list(records.counts.values())


PACKING = tiny_run.PACKING
SHORT = {"max_seq_length": 24, "max_predictions_per_seq": 5}

# The training records, changes of the settings, parts of the refusal. `{}` is
# the directory of records, or of copies of their shards without metadata.
REFUSALS = {
    "no files": ("static", {"input_file": ()}, ["must name files", "none"]),
    "no matches": (
        "static",
        {"input_file": ("/none/*.tfrecord",)},
        ["input_file must match files", "no file at /none/*.tfrecord"],
    ),
    "length": (
        "static",
        SHORT,
        ["max_seq_length 32 and 24", "max_predictions_per_seq 6 and 5"],
    ),
    "length without metadata": ("bare", SHORT, ["input_ids 32 and 24"]),
    "lanes": ("static", {"input_lanes": 2}, ["3 shards, beginning with"]),
    # The second of two shards, which is that of lane 1, is empty.
    "empty lane": (
        "empty",
        {"input_lanes": 2},
        ["input_lanes=2 lanes must", "no record in", "-00001-of-"],
    ),
    "unfinished": ("unfinished", {}, ["a build that has not ended"]),
    "truncated": ("truncated", {}, ["train-00000", "must be an intact"]),
    "two maskings": (
        "static dynamic",
        {},
        ["one masking", "dynamic in {dynamic}/train"],
    ),
    "packed, but unpacked expected": (
        "packed",
        {},
        [
            "{packed}/train/metadata.json must agree with the settings",
            "packing 'best_fit' and 'none'; max_examples_per_row 4 and 1",
        ],
    ),
    "unpacked, but packed expected": (
        "static",
        PACKING,
        ["{static}/train/metadata.json", "packing 'none' and 'best_fit'"],
    ),
    "another K": (
        "packed",
        {**PACKING, "max_examples_per_row": 8},
        ["max_examples_per_row 4 and 8"],
    ),
    "packed and unpacked": (
        "packed static",
        PACKING,
        ["{static}/train/metadata.json", "packing 'none' and 'best_fit'"],
    ),
    "packed without metadata": (
        "bare packed",
        PACKING,
        ["--packing=best_fit needs {bare packed}/train/metadata.json"],
    ),
    "packed without metadata, but unpacked expected": (
        "bare packed",
        {},
        ["next_sentence_labels 4 and 1", "need the metadata.json"],
    ),
    # The rows of the build have slots for masks of its own settings.
    "packed for another masking": (
        "dynamic packed",
        {
            **PACKING,
            "masked_lm_prob": 0.3,
            "ngram": 2,
            "max_predictions_per_seq": 7,
        },
        [
            "masked_lm_prob 0.15 and 0.3",
            "ngram 3 and 2",
            "max_predictions_per_seq 6 and 7",
        ],
    ),
    "held-out records without masks": (
        "static",
        {"eval_input_file": ("{dynamic}/train/*.tfrecord",)},
        ["eval_input_file must hold records of static masking"],
    ),
}


@pytest.fixture
def directories(
    tiny_records,
    tiny_dynamic_records,
    tiny_packed_records,
    tiny_dynamic_packed_records,
    tmp_path,
):
    """Directories of records, also of incomplete copies."""
    copies = {
        "bare": tiny_records,
        "unfinished": tiny_records,
        "truncated": tiny_records,
        "bare packed": tiny_packed_records,
    }
    for name, source in copies.items():
        shutil.copytree(source / "train", tmp_path / name / "train")
        (tmp_path / name / "train/metadata.json").unlink()
    (tmp_path / "unfinished/unfinished.json").write_text("{}")
    first, second, third = sorted((tiny_records / "train").glob("*d"))
    shards = {first.name: 9, second.name: 0}
    copy(tiny_records / "train", tmp_path / "empty" / "train", shards=shards)
    (tmp_path / "empty/train" / third.name).unlink()
    file = min((tmp_path / "truncated/train").glob("*.tfrecord"))
    file.write_bytes(file.read_bytes()[:-7])
    return {
        "static": tiny_records,
        "dynamic": tiny_dynamic_records,
        "packed": tiny_packed_records,
        "dynamic packed": tiny_dynamic_packed_records,
        **{name: tmp_path / name for name in (*copies, "empty")},
    }


@pytest.mark.parametrize("case", REFUSALS)
def test_records_that_do_not_fit_the_run_are_refused(
    case, directories, tmp_path
):
    trained, changes, parts = REFUSALS[case]
    names = [trained] if trained in directories else trained.split()
    changes = {
        name: tuple(v.format(**directories) for v in value)
        if name.endswith("input_file")
        else value
        for name, value in changes.items()
    }
    files = tuple(f"{directories[name]}/train/*.tfrecord" for name in names)
    config = tiny_run.make_config(
        directories["static"], tmp_path, **{"input_file": files, **changes}
    )
    with pytest.raises(UserError) as error:
        record_sets.find_training_data(config)
        record_sets.find_held_out(config)
    text = " ".join(str(error.value).split())
    for part in parts:
        assert part.format(**directories) in text


def test_held_out_records_of_one_example_fit_a_run_on_packed_records(
    tiny_packed_records, tmp_path
):
    config = tiny_run.make_config(tiny_packed_records, tmp_path, **PACKING)
    held_out = record_sets.find_held_out(config)
    assert held_out.packing == "none"
    names = [f.name for f in pretraining_format(held_out, config.data).features]
    assert "next_sentence_positions" not in names


def test_the_content_of_a_row_comes_from_the_metadata(
    tiny_packed_records, tiny_records, tmp_path
):
    config = tiny_run.make_config(tiny_packed_records, tmp_path, **PACKING)
    (phase,) = record_sets.find_training_data(config).phases
    shards = sorted((tiny_packed_records / "train").glob("*.tfrecord"))
    serialized = next(iter(tf.data.TFRecordDataset(shards).batch(10**6)))
    features = features_to_read("static", "best_fit")
    rows = parse_records(serialized, features, config.data)
    numbers = rows["input_mask"].numpy()
    assert phase.records.num_records == len(numbers)
    assert phase.records.examples_per_row == pytest.approx(
        numbers.max(axis=1).mean()
    )
    assert phase.records.examples_per_row > 1.2
    assert phase.records.useful_share > 0.85
    assert phase.records.useful_share == pytest.approx((numbers > 0).mean())

    unpacked = tiny_run.make_config(tiny_records, tmp_path)
    (phase,) = record_sets.find_training_data(unpacked).phases
    assert phase.records.examples_per_row == 1
    assert 0.5 < phase.records.useful_share < 1
