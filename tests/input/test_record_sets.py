import gzip
import json
import shutil

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import record_sets
from albert_tf.input.record_format import parse_records, pretraining_format
from albert_tf.io.tfrecord import write_records
from albert_tf.records.features import features_to_read
from tests.helpers import tiny_run


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(tiny_records, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def records(config):
    return record_sets.find_records(
        "input_file", config.data.input_file, config
    )


def copy(source, target, **changes):
    """Copies records, changes their metadata, and returns a glob."""
    shutil.copytree(source, target)
    path = target / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | changes))
    return f"{target}/*.tfrecord"


def test_the_directories_of_records_are_told_apart(tiny_records, config):
    """A build shuffles only its own records."""
    one, two, three = sorted(map(str, (tiny_records / "train").glob("*d")))
    (held_out,) = map(str, (tiny_records / "eval").glob("*d"))
    found = record_sets.find_training_data(
        config.replace(input_file=(one, two, three, held_out))
    )
    assert found.files_by_directory == ((held_out,), (one, two, three))
    assert found.files == (held_out, one, two, three)


def test_the_unigram_entropy_of_several_directories_is_their_mean(
    tiny_records, config, tmp_path
):
    """Weighted by tokens; the second directory has three times as many."""
    files = [
        copy(
            tiny_records / "train",
            tmp_path / name,
            num_pieces=num_pieces,
            unigram_entropy_nats=entropy,
        )
        for name, num_pieces, entropy in (("a", 100, 6.0), ("b", 300, 7.0))
    ]
    found = record_sets.find_records("input_file", files, config)
    assert found.metadata.unigram_entropy_nats == 6.75


def test_records_without_metadata_are_counted_and_read(
    tiny_records, config, records, tmp_path
):
    """google-research/albert writes such records."""
    for file in (tiny_records / "train").glob("*.tfrecord"):
        shutil.copy(file, tmp_path)
    found = record_sets.find_records(
        "input_file", [f"{tmp_path}/*.tfrecord"], config
    )

    assert found.metadata is None
    assert list(found.counts.values()) == list(records.counts.values())


PACKING = tiny_run.PACKING
SHORT = {"max_seq_length": 24, "max_predictions_per_seq": 5}


def held_out(name, **changes):
    return {"eval_input_file": (f"{{{name}}}/train/*.tfrecord",), **changes}


EMPTY = {"train-00000-of-00003.tfrecord": 9, "train-00001-of-00003.tfrecord": 0}

# The training records, changes of the settings, and parts of the refusal. `{}`
# is the directory of records, or of copies.
REFUSALS = [
    ("static", {"input_file": ()}, "must hold records", "in no file"),
    ("none", {}, "input_file must match files", "no file at /none/train"),
    (
        "static",
        SHORT | {"vocab_size": 999},
        "max_seq_length 32 and 24; vocab_size 400 and 999",
        "_per_seq 6 and 5",
        "Set --max_seq_length=32 --model=vocab_size="
        f"{tiny_run.MODEL.vocab_size} --max_predictions_per_seq=6, or build",
    ),
    (
        "static",
        {"input_file": ("{static}/train",)},
        "is a directory: give a glob, e.g. {static}/train/*.tfrecord",
    ),
    ("bare", SHORT, "input_ids 32 and 24"),
    ("static", {"input_lanes": 2}, "3 shards, beginning with"),
    # The second of two shards, which is that of lane 1, is empty.
    (
        "empty",
        {"input_lanes": 2},
        "=2 lanes must",
        "no record in",
        "-00001-of-",
    ),
    ("unfinished", {}, "a build that has not ended"),
    ("truncated", {}, "train-00000", "must be an intact"),
    ("compressed", {}, "the file is compressed: unpack it with gzip -d"),
    ("garden", {}, "with input_ids. Received: input_word_ids. Build"),
    ("text", {}, "with input_ids. Received: another message. Build"),
    ("static+dynamic", {}, "{dynamic}/train", "masking 'static' and 'dynamic'"),
    (
        "packed",
        {},
        "{packed}/train/metadata.json must agree with the settings",
        "packing 'best_fit' and 'none'; max_examples_per_row 4 and 1",
    ),
    ("static", PACKING, "{static}/train", "packing 'none' and 'best_fit'"),
    (
        "packed",
        {**PACKING, "max_examples_per_row": 8},
        "max_examples_per_row 4 and 8",
    ),
    ("packed+static", PACKING, "{static}/train", "'none' and 'best_fit'"),
    ("bare_packed", PACKING, "without {bare_packed}/train/m", "'best_fit'"),
    ("bare_packed", {}, "sentence_labels 4 and 1", "need the metadata.json"),
    # The rows of the build have slots for masks of its own settings.
    (
        "dynamic_packed",
        {
            **PACKING,
            "masked_lm_prob": 0.3,
            "ngram": 2,
            "max_predictions_per_seq": 7,
        },
        "masked_lm_prob 0.15 and 0.3",
        "ngram 3 and 2",
        "max_predictions_per_seq 6 and 7",
    ),
    ("static", held_out("dynamic"), "must hold records of static masking"),
    ("static", held_out("nsp"), "sentence_objective 'nsp' and 'sop'"),
    (
        "static",
        held_out("nsp", mode="eval", eval_sentence_objective="sop"),
        "sentence_objective 'nsp' and 'sop'",
    ),
    (
        "static",
        held_out("other"),
        "{other}/train must agree with {static}/train",
        "vocabulary_sha256 'ab' and",
        "the same --spm_model_file and --do_lower_case",
    ),
    ("static", held_out("cased"), "do_lower_case False and True"),
    ("static+cased", {}, "must agree", "do_lower_case", "Build both with"),
    # Training records, under the same path or another one: recognised by their
    # checksums and, without metadata, by their real paths.
    ("static", held_out("static"), "must hold no file of input_file"),
    ("static", held_out("copy"), "must hold no file of input_file"),
    ("bare", held_out("link"), "must hold no file of input_file"),
]


@pytest.fixture
def directories(
    tiny_records,
    tiny_dynamic_records,
    tiny_packed_records,
    tiny_dynamic_packed_records,
    tmp_path,
):
    """Directories of records, also of incomplete and changed copies."""
    for name in ("bare", "unfinished", "truncated", "bare_packed"):
        source = tiny_packed_records if "packed" in name else tiny_records
        copy(source / "train", tmp_path / name / "train")
        (tmp_path / name / "train/metadata.json").unlink()
    (tmp_path / "unfinished/unfinished.json").write_text("{}")
    file = min((tmp_path / "truncated/train").glob("*.tfrecord"))
    file.write_bytes(file.read_bytes()[:-7])
    contents = {"compressed": b"", "text": b"no message"}
    example = tf.train.Example()
    example.features.feature["input_word_ids"].int64_list.value[:] = [2, 7, 3]
    contents["garden"] = example.SerializeToString()
    for name, content in contents.items():
        path = tmp_path / name / "train/a.tfrecord"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            write_records(file, [content])
    path = tmp_path / "compressed/train/a.tfrecord"
    path.write_bytes(gzip.compress(path.read_bytes()))
    for name, split, changes in (
        ("nsp", "eval", {"sentence_objective": "nsp"}),
        ("other", "eval", {"vocabulary_sha256": "ab"}),
        ("cased", "eval", {"do_lower_case": False}),
        ("copy", "train", {}),
        ("empty", "train", {"shards": EMPTY}),
    ):
        copy(tiny_records / split, tmp_path / name / "train", **changes)
    (tmp_path / "link").symlink_to(tmp_path / "bare")
    max((tmp_path / "empty/train").glob("*.tfrecord")).unlink()
    return {
        "none": "/none",
        "static": tiny_records,
        "dynamic": tiny_dynamic_records,
        "packed": tiny_packed_records,
        "dynamic_packed": tiny_dynamic_packed_records,
        **{path.name: path for path in tmp_path.iterdir()},
    }


@pytest.mark.parametrize("case", REFUSALS)
def test_records_that_do_not_fit_the_run_are_refused(
    case, directories, tmp_path
):
    names, changes, *parts = case
    changes = {
        "input_file": tuple(
            f"{directories[name]}/train/*.tfrecord" for name in names.split("+")
        ),
        **changes,
    }
    for setting in {"input_file", "eval_input_file"} & changes.keys():
        changes[setting] = tuple(
            files.format(**directories) for files in changes[setting]
        )
    config = tiny_run.make_config(directories["static"], tmp_path, **changes)
    with pytest.raises(UserError) as error:
        data = record_sets.find_training_data(config)
        found = record_sets.find_held_out(config)
        record_sets.check_held_out(data, found, config.data)
    text = " ".join(str(error.value).split())
    for part in parts:
        assert part.format(**directories) in text


@pytest.mark.parametrize(
    ("train", "ngram", "warns"),
    [("static", 1, False), ("dynamic", 3, False), ("dynamic", 1, True)],
)
def test_other_masks_of_the_held_out_records_give_a_warning(
    request, tmp_path, caplog, train, ngram, warns
):
    """Of spans of up to three words, by the settings of masks made now."""
    name = "tiny_records" if train == "static" else "tiny_dynamic_records"
    records = request.getfixturevalue(name)
    config = tiny_run.make_config(records, tmp_path, ngram=ngram)
    data = record_sets.find_training_data(config)
    found = record_sets.find_held_out(config)
    record_sets.check_held_out(data, found, config.data)
    assert ("masks have ngram 1 and 3" in caplog.text) == warns


def test_held_out_records_may_be_unpacked_and_of_another_objective(
    tiny_packed_records, tmp_path
):
    """If --eval_sentence_objective names it."""
    changes = {"sentence_objective": "nsp"}
    files = copy(tiny_packed_records / "eval", tmp_path / "eval", **changes)
    config = tiny_run.make_config(
        tiny_packed_records,
        tmp_path,
        eval_input_file=(files,),
        eval_sentence_objective="nsp",
        mode="eval",
        **PACKING,
    )
    found = record_sets.find_held_out(config)
    names = [f.name for f in pretraining_format(found, config.data).features]
    assert "next_sentence_positions" not in names


def test_the_content_of_a_row_comes_from_the_metadata(
    tiny_packed_records, tiny_records, tmp_path
):
    config = tiny_run.make_config(tiny_packed_records, tmp_path, **PACKING)
    records = record_sets.find_training_data(config)
    shards = sorted((tiny_packed_records / "train").glob("*.tfrecord"))
    serialized = next(iter(tf.data.TFRecordDataset(shards).batch(10**6)))
    features = features_to_read("static", "best_fit")
    rows = parse_records(serialized, features, config.data)
    numbers = rows["input_mask"].numpy()
    assert records.num_records == len(numbers)
    assert records.examples_per_row == pytest.approx(numbers.max(axis=1).mean())
    assert records.examples_per_row > 1.2
    assert records.useful_share > 0.85
    assert records.useful_share == pytest.approx((numbers > 0).mean())

    unpacked = tiny_run.make_config(tiny_records, tmp_path)
    records = record_sets.find_training_data(unpacked)
    assert records.examples_per_row == 1
    assert 0.5 < records.useful_share < 1
