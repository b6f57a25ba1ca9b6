"""What describes a run, and what may change before it continues."""

import functools
import json
import logging
import shutil

import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig, TaskConfig
from albert_tf.config.task import FinetuningTrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_held_out, find_training_data
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.training.evaluate import evaluate_run
from albert_tf.training.train import train
from tests.helpers import tiny_run

# The shards of `tiny_records`.
FIRST, SECOND, THIRD = (f"train-{i:05}-of-00003.tfrecord" for i in range(3))


def begin(config):
    """Creates a run of this config with a checkpoint."""
    run_directory.write(config, find_training_data(config))
    variables = {"kernel": tf.Variable([1.0])}
    store = CheckpointStore(config.training.output_dir, variables)
    store.save(2, {"totals": {}})
    store.wait()


def check(config):
    run_directory.check(config, find_training_data(config))


def copy_records(tiny_records, directory, **metadata):
    """A copy of train/, with other values in its metadata."""
    shutil.copytree(tiny_records / "train", directory)
    path = directory / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | metadata))
    return f"{directory}/*.tfrecord"


def copy_without_metadata(tiny_records, directory):
    """Copies records without metadata, as google-research/albert has them."""
    pattern = copy_records(tiny_records, directory)
    (directory / "metadata.json").unlink()
    return pattern


@pytest.fixture
def run(tiny_records, tmp_path):
    """A run in tmp_path/run: a function that returns its settings.

    Keyword arguments of the function change settings.
    """
    settings = functools.partial(
        tiny_run.make_config,
        tiny_records,
        tmp_path / "run",
        init_checkpoint="published",
    )
    begin(settings())
    return settings


# --- what is written ----------------------------------------------------------


def test_the_directory_describes_the_run_completely(
    run, tiny_records, tmp_path
):
    assert run_directory.load_config(str(tmp_path / "run")) == run()
    for name, written in (
        ("metadata.json", "records_metadata.json"),
        ("spiece.model", "spiece.model"),
    ):
        source = (tiny_records / "train" / name).read_bytes()
        assert (tmp_path / "run" / written).read_bytes() == source
    metadata = json.loads((tiny_records / "train/metadata.json").read_text())
    stored = json.loads((tmp_path / "run/training_records.json").read_text())
    shards = [
        [name, metadata["shards"][name], metadata["checksums"][name]]
        for name in (FIRST, SECOND, THIRD)
    ]
    assert stored == {"shards": shards}


def test_the_null_threshold_of_the_run_comes_first(tmp_path):
    """The settings' is second. In SQuAD 1.1, every question has an answer."""

    def threshold(task):
        training = FinetuningTrainingConfig(null_threshold=-2.0)
        config = FinetuningConfig(task=TaskConfig(task=task), training=training)
        return run_directory.null_threshold(str(tmp_path), config)

    assert threshold("squad_v2") == -2
    (tmp_path / "null_threshold.json").write_text('{"null_threshold": 1.5}')
    assert threshold("squad_v2") == 1.5
    assert threshold("squad_v1") == float("inf")


# --- changed settings ---------------------------------------------------------

NEVER, IF_ALLOWED = "Choose another", "Restore them"
AT_THE_START = "Choose another --output_dir"


@pytest.mark.parametrize(
    ("change", "said", "remedy"),
    [
        ({"hidden_size": 32}, "model.hidden_size was 16 and is 32", NEVER),
        (  # the same variables, for one layer more
            {"num_hidden_layers": 2},
            "model.num_hidden_layers was 1 and is 2",
            NEVER,
        ),
        (
            {"sentence_objective": "none"},
            "training.sentence_objective was 'sop' and is 'none'",
            NEVER,
        ),
        (
            {"learning_rate": 0.5},
            "optimizer.learning_rate was 0.02 and is 0.5",
            IF_ALLOWED,
        ),
        (
            {"init_checkpoint": "another"},
            "initialization.init_checkpoint was 'published' and is 'another'",
            AT_THE_START,
        ),
        (
            {"ngram": 1, "seed": 7, "clip_norm": 2.0, "steps_per_loop": 1},
            "data.ngram was 3 and is 1; optimizer.clip_norm was 1.0 and is "
            "2.0; training.seed was 12345 and is 7",
            IF_ALLOWED,
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_setting_is_refused_or_allowed(
    run, tmp_path, change, said, remedy, caplog
):
    """By what it affects. Evaluations need the model only."""
    caplog.set_level(logging.INFO, "absl")
    allowed = run(**change, allow_config_change=True)
    data, held_out = find_training_data(run()), find_held_out(run())
    refused = run(**change) if remedy == IF_ALLOWED else allowed
    with pytest.raises(UserError, match="own settings") as error:
        run_directory.check(refused, data)
    assert f"Received: {said}. {remedy}" in str(error.value)
    named = "--allow_config_change" in error.value.remedy
    assert named == (remedy == IF_ALLOWED)
    assert not caplog.records
    if remedy == NEVER:
        with pytest.raises(UserError, match="its own architecture") as error:
            run_directory.check_evaluation(allowed, held_out)
        assert said in str(error.value)
        # Until there is a checkpoint, the run is new.
        shutil.rmtree(tmp_path / "run" / "checkpoints")
        run_directory.check(allowed, data)
        run_directory.check_evaluation(allowed, held_out)
        return
    run_directory.check_evaluation(run(**change), held_out)
    assert not caplog.records
    if remedy == AT_THE_START:
        return
    run_directory.check(allowed, data)
    lines = [record.getMessage() for record in caplog.records]
    assert any(f"as allowed: {said}" in line for line in lines)


def test_the_same_settings_are_accepted_silently_in_a_moved_run(
    run, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "absl")
    moved = str(tmp_path / "moved")
    (tmp_path / "run").rename(moved)
    check(run(output_dir=moved, strategy="mirrored", eval_input_file=()))
    assert not caplog.records
    with pytest.raises(UserError, match="learning_rate was"):
        check(run(output_dir=moved, learning_rate=0.5))


def test_the_last_step_may_not_be_before_the_newest_checkpoint(run):
    """The checkpoint of the run has step 2."""
    shorter = run(
        num_train_steps=1, num_warmup_steps=1, allow_config_change=True
    )
    with pytest.raises(
        UserError, match=r"num_train_steps must be at least 2, .*Received: 1\."
    ):
        check(shorter)
    check(run(num_train_steps=2, allow_config_change=True))


def test_parts_of_a_run_without_its_checkpoints_are_refused(run, tmp_path):
    """A new run would compare its losses with those of other weights. A
    checkpoint without its `checkpoint.json` does not count."""
    run_dir = tmp_path / "run"
    store = CheckpointStore(str(run_dir), {"kernel": tf.Variable([1.0])})
    store.save_best(2, {}, 1.5)
    store.wait()
    check(run())
    (committed,) = run_dir.glob("checkpoints/*/checkpoint.json")
    committed.unlink()
    with pytest.raises(UserError, match=r"have checkpoints, since .* best/\."):
        check(run())
    (committed,) = run_dir.glob("best/*/checkpoint.json")
    committed.unlink()  # without it, the next save removes the rest
    check(run(learning_rate=0.5))


def test_settings_of_another_release_are_read_by_name(run, tmp_path):
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    del stored["optimizer"]["poly_power"]  # the default then applies
    path.write_text(json.dumps(stored))
    check(run())
    with pytest.raises(UserError, match=r"poly_power was 1\.0 and is"):
        check(run(poly_power=2.0))
    stored["optimizer"]["of_a_later_release"] = 1
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"config\.json: .*of_a_later_release"):
        check(run())
    path.unlink()
    with pytest.raises(UserError, match=r"run/config\.json must exist"):
        check(run())


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_refused_change_leaves_the_run_and_an_allowed_one_resumes(
    source, tiny_records, tmp_path, capsys
):
    def content():
        return {
            path: path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    run = functools.partial(
        tiny_run.make_config,
        tiny_records,
        shutil.copytree(source, tmp_path / "run"),
        eval_input_file=(),
    )
    before = content()
    with pytest.raises(UserError, match="num_train_steps was 12 and is 14"):
        train(run(num_train_steps=14))
    held_out = (f"{tiny_records}/eval/*.tfrecord",)
    evaluate_run(run(num_train_steps=14, eval_input_file=held_out))
    assert json.loads(capsys.readouterr().out)["step"] == 12
    assert content() == before

    assert train(run(num_train_steps=14, allow_config_change=True)) == 0
    stored = run_directory.load_config(str(tmp_path / "run"))
    assert stored == run(num_train_steps=14, allow_config_change=True)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 14
    # Now these are the settings of the run; the former ones are refused.
    check(run(num_train_steps=14))
    with pytest.raises(UserError, match="num_train_steps must be at least 14"):
        check(run())


# --- changed records ----------------------------------------------------------


SAME_SHARDS = (
    "the same shards, read in another order: the paths sort in another order, "
    "or the directories differ"
)


def test_moved_records_and_unused_datasets_are_accepted(
    run, tiny_records, tmp_path, caplog
):
    elsewhere = tmp_path / "elsewhere"
    pattern = copy_records(tiny_records, elsewhere)
    check(run(input_file=(pattern,)))
    names = THIRD, FIRST, SECOND
    check(run(input_file=tuple(f"{elsewhere}/{name}" for name in names)))
    assert not caplog.records


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            {"input_file": "{r}/*.tfrecord"},
            {"input_file": "{r}/*-0000[12]-*"},
            f"missing shards: {FIRST}; new shards: none",
        ),
        (
            {"input_file": "{r}/*.tfrecord"},
            {"input_file": "{r}/*.tfrecord {copy}/" + THIRD},
            f"missing shards: none; new shards: {THIRD}",
        ),
        (  # the same names and numbers of records
            {"input_file": "{r}/*.tfrecord"},
            {"input_file": "{rebuilt}/*.tfrecord"},
            f"missing shards: {SECOND}; new shards: {SECOND}",
        ),
        (  # without checksums, by the number of records
            {"input_file": "{unknown}/*.tfrecord"},
            {"input_file": "{fewer}/*.tfrecord"},
            f"missing shards: {THIRD}; new shards: {THIRD}",
        ),
        (  # the order of the paths decides when a shard is read
            {"input_file": f"{{copy}}/{FIRST} {{r}}/{SECOND}"},
            {"input_file": f"{{r}}/{FIRST} {{copy}}/{SECOND}"},
            SAME_SHARDS,
        ),
        (  # the shards are equal but are read in another order
            {"input_file": f"{{r}}/{FIRST} {{r}}/{SECOND} {{copy}}/{THIRD}"},
            {"input_file": f"{{r}}/{FIRST} {{copy}}/{SECOND} {{copy}}/{THIRD}"},
            SAME_SHARDS,
        ),
    ],
    ids=range(6),
)
def test_changed_records_are_refused_unless_allowed(
    run, tiny_records, tmp_path, before, now, said, caplog
):
    """`--allow_config_change` continues with them."""
    r = tiny_records / "train"
    checksums = json.loads((r / "metadata.json").read_text())["checksums"]
    copies = {name: tmp_path / f"z_{name}" for name in ("copy", "rebuilt")}
    copy_records(tiny_records, copies["copy"])
    copy_records(
        tiny_records,
        copies["rebuilt"],
        checksums=checksums | {SECOND: "0" * 64},
    )
    for name in ("unknown", "fewer"):
        copies[name] = tmp_path / name
        copy_without_metadata(tiny_records, copies[name])
    shard = str(copies["fewer"] / THIRD)
    records = list(tf.data.TFRecordDataset(shard).as_numpy_iterator())
    with tf.io.TFRecordWriter(shard) as writer:
        for record in records[:-1]:
            writer.write(record)

    def changed(**changes):
        values = {**before, **changes}
        paths = values["input_file"].format(r=r, **copies)
        return run(**values | {"input_file": tuple(paths.split())})

    begin(changed())
    check(changed())
    with pytest.raises(UserError, match=r"training_records\.json") as error:
        check(changed(**now))
    assert f"Received: {said}. " in str(error.value)
    assert "--allow_config_change" in error.value.remedy
    check(changed(**now, allow_config_change=True))
    assert caplog.records[-1].getMessage().endswith(f"as allowed: {said}")


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary_sha256", "0" * 64), ("do_lower_case", False)],
)
def test_a_changed_vocabulary_is_always_refused(
    run, tiny_records, tmp_path, name, value
):
    pattern = copy_records(tiny_records, tmp_path / "copy", **{name: value})
    with pytest.raises(
        UserError, match=f"copy.* must agree with .*Received: {name} "
    ) as error:
        check(run(input_file=(pattern,), allow_config_change=True))
    assert "run/records_metadata.json" in str(error.value)
    assert "run/spiece.model" in error.value.remedy


def test_the_vocabulary_of_a_converted_model_is_compared(
    run, tiny_records, tmp_path, caplog
):
    """Such a run has no metadata of records."""
    (tmp_path / "run" / "records_metadata.json").unlink()
    pattern = copy_records(
        tiny_records, tmp_path / "copy", vocabulary_sha256="0" * 64
    )
    other = run(eval_input_file=(pattern,))
    run_directory.check_evaluation(run(), find_held_out(run()))
    assert not caplog.records
    with pytest.raises(UserError, match=r"run/spiece\.model.*sha256 '000"):
        run_directory.check_evaluation(other, find_held_out(other))
    (tmp_path / "run" / "spiece.model").unlink()
    run_directory.check_evaluation(other, find_held_out(other))
    assert "is not compared with that of the model" in caplog.text
