import dataclasses
import json
import shutil

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import record_sets
from albert_tf.input.batch_stream import BatchStream
from tests.helpers import tiny_run


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(tiny_records, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def records(config):
    return record_sets.find_records(
        "input_file", config.data.input_file, config
    )


def test_dynamic_records_are_refused_as_held_out_set(
    tiny_dynamic_records, config
):
    data = dataclasses.replace(
        config.data,
        eval_input_file=(f"{tiny_dynamic_records}/train/*.tfrecord",),
    )
    with pytest.raises(UserError, match=r"eval_input_file must .* static"):
        record_sets.find_held_out(dataclasses.replace(config, data=data))
    data = dataclasses.replace(
        config.data,
        eval_input_file=(f"{tiny_dynamic_records}/eval/*.tfrecord",),
    )
    held_out = record_sets.find_held_out(dataclasses.replace(config, data=data))
    assert held_out.masking == "static"


def test_a_mixture_of_static_and_dynamic_records_is_refused(
    tiny_dynamic_records, config
):
    both = (
        *config.data.input_file,
        f"{tiny_dynamic_records}/train/*.tfrecord",
    )
    with pytest.raises(UserError, match="one masking") as error:
        record_sets.find_records("input_file", both, config)
    assert f"dynamic only in {tiny_dynamic_records}/train" in str(error.value)


def test_dynamic_records_allow_any_number_of_predictions(
    tiny_dynamic_records, config
):
    data = dataclasses.replace(
        config.data,
        input_file=(f"{tiny_dynamic_records}/train/*.tfrecord",),
        max_predictions_per_seq=4,
    )
    found = record_sets.find_training_data(
        dataclasses.replace(config, data=data)
    )
    make = BatchStream(found, data, 7).open(0)
    spec = make(tf.distribute.InputContext()).element_spec
    assert spec["masked_lm_ids"].shape == (8, 4)


def test_records_of_several_directories_alternate(tiny_records, config):
    """A build shuffles only its own records."""
    data = dataclasses.replace(
        config.data,
        input_file=tuple(
            f"{tiny_records}/{name}/*.tfrecord" for name in ("train", "eval")
        ),
    )
    found = record_sets.find_training_data(
        dataclasses.replace(config, data=data)
    )
    few, many = found.phases[0].records.sets
    assert {file.split("/")[-2] for file in few} == {"eval"}
    assert {file.split("/")[-2] for file in many} == {"train"}
    assert (len(few), len(many)) == (1, 3)


def test_the_unigram_entropy_of_several_sets_is_their_mean(
    tiny_records, config, tmp_path
):
    """Weighted by tokens; the second set has three times as many."""
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, times, entropy in zip(paths, (1, 3), (6.0, 7.0), strict=True):
        shutil.copytree(tiny_records / "train", path)
        metadata = json.loads((path / "metadata.json").read_text())
        metadata["num_pieces"] *= times
        metadata["unigram_entropy_nats"] = entropy
        (path / "metadata.json").write_text(json.dumps(metadata))
    found = record_sets.find_records(
        "input_file", [f"{path}/*.tfrecord" for path in paths], config
    )
    assert found.metadata.unigram_entropy_nats == 6.75


def test_records_of_another_length_are_refused_with_both_values(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, max_seq_length=24, max_predictions_per_seq=5
    )
    with pytest.raises(UserError) as error:
        record_sets.find_records("input_file", config.data.input_file, config)
    assert "max_seq_length 32 and 24" in str(error.value)
    assert "max_predictions_per_seq 6 and 5" in str(error.value)


def test_held_out_records_have_the_objective_that_the_settings_name(
    tiny_records, tmp_path, config
):
    """That of the run, or of --eval_sentence_objective."""
    shutil.copytree(tiny_records / "eval", tmp_path / "eval")
    metadata = tmp_path / "eval" / "metadata.json"
    stored = json.loads(metadata.read_text())
    assert stored["sentence_objective"] == "sop"
    metadata.write_text(json.dumps({**stored, "sentence_objective": "nsp"}))

    def find(**training):
        return record_sets.find_held_out(
            dataclasses.replace(
                config,
                data=dataclasses.replace(
                    config.data,
                    eval_input_file=(f"{tmp_path}/eval/*.tfrecord",),
                ),
                training=dataclasses.replace(
                    config.training, mode="eval", **training
                ),
            )
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
    shutil.copytree(tiny_records / "eval", other)
    metadata = json.loads((other / "metadata.json").read_text())
    metadata[name] = value
    (other / "metadata.json").write_text(json.dumps(metadata))
    held_out = record_sets.find_records(
        "eval_input_file", [f"{other}/*.tfrecord"], config
    )
    pair = f"{other} must agree with {tiny_records}/train. Received: {name} "
    with pytest.raises(UserError, match=f"{pair}{value!r} and") as error:
        record_sets.check_held_out(records, held_out)
    assert "the same --spm_model_file and --do_lower_case" in str(error.value)
    both = [*config.data.input_file, f"{other}/*.tfrecord"]
    with pytest.raises(
        UserError, match=f"must agree with .*{name} .*Build both"
    ):
        record_sets.find_records("input_file", both, config)


def test_training_records_are_refused_as_held_out_set(records):
    with pytest.raises(UserError, match="eval_input_file must hold no file"):
        record_sets.check_held_out(records, records)


@pytest.mark.parametrize("is_link", [False, True])
def test_training_records_are_recognised_under_another_path(
    tiny_records, records, config, tmp_path, is_link
):
    """By the checksum in the metadata, or, without metadata, by the file."""
    other = tmp_path / "other"
    if is_link:
        records = dataclasses.replace(
            records, checksums=("",) * len(records.files)
        )
        other.symlink_to(tiny_records / "train")
    else:
        shutil.copytree(tiny_records / "train", other)
    held_out = record_sets.find_records(
        "eval_input_file", [f"{other}/*.tfrecord"], config
    )
    with pytest.raises(UserError, match="no file of input_file"):
        record_sets.check_held_out(records, held_out)


def test_the_shards_of_an_unfinished_build_are_refused(
    tiny_records, config, tmp_path
):
    shutil.copytree(tiny_records / "train", tmp_path / "train")
    (tmp_path / "train" / "metadata.json").unlink()
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(UserError, match="a build that has not ended"):
        record_sets.find_records(
            "input_file", [f"{tmp_path}/train/*.tfrecord"], config
        )


def test_a_truncated_file_without_metadata_is_refused(
    tiny_records, config, tmp_path
):
    file = next((tiny_records / "train").glob("*.tfrecord"))
    (tmp_path / "truncated.tfrecord").write_bytes(file.read_bytes()[:-7])
    with pytest.raises(
        UserError, match=r"truncated\.tfrecord must be an intact"
    ):
        record_sets.find_records(
            "input_file", [f"{tmp_path}/*.tfrecord"], config
        )


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
    assert found.counts == records.counts


def test_records_without_metadata_of_another_length_are_refused(
    tiny_records, tmp_path
):
    for file in (tiny_records / "train").glob("*.tfrecord"):
        shutil.copy(file, tmp_path)
    config = tiny_run.make_config(
        tiny_records, tmp_path, max_seq_length=24, max_predictions_per_seq=5
    )
    with pytest.raises(UserError, match="input_ids 32 and 24"):
        record_sets.find_records(
            "input_file", [f"{tmp_path}/*.tfrecord"], config
        )


def test_a_lane_without_records_is_refused(tiny_records, config, tmp_path):
    """The second of two shards, which is that of lane 1, is empty."""
    metadata = json.loads((tiny_records / "train/metadata.json").read_text())
    first, second, _ = sorted(metadata["shards"])
    shutil.copy(tiny_records / "train" / first, tmp_path)
    (tmp_path / second).write_bytes(b"")
    metadata["shards"][second] = 0
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    data = dataclasses.replace(
        config.data, input_file=(f"{tmp_path}/*.tfrecord",), input_lanes=2
    )
    with pytest.raises(
        UserError, match=rf"input_lanes=2 lanes must .*no record in .*{second}"
    ):
        record_sets.find_training_data(dataclasses.replace(config, data=data))


def test_training_without_records_is_refused(config):
    with pytest.raises(UserError, match=r"input_file must name files .* none"):
        record_sets.find_training_data(config.replace(input_file=()))


def test_a_glob_without_files_is_refused(config, tmp_path):
    with pytest.raises(UserError, match=r"input_file .*no file at"):
        record_sets.find_records(
            "input_file", [f"{tmp_path}/*.tfrecord"], config
        )
