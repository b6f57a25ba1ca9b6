"""Real checks of real set-ups, good and bad."""

import tiny_run
from run_processes import RunProcesses

from albert_tf import preflight
from albert_tf.step_cost import num_parameters
from albert_tf.train import train


def table_of(config, capsys):
    """Verdicts and texts by check, and the exit status."""
    status = preflight.run(config)
    lines = capsys.readouterr().out.splitlines()
    checks = {}
    name = ""
    for line in lines[:-1]:
        if line.startswith(" "):
            checks[name] += line
        else:
            verdict, rest = line.split(maxsplit=1)
            name = rest.split("  ")[0].strip()
            checks[name] = f"{verdict}: {rest}"
    return checks, status


def failed(checks):
    return {name for name, text in checks.items() if text.startswith("FAIL")}


def test_a_sound_run_passes_and_nothing_is_left(tiny_records, tmp_path, capsys):
    run_dir = tmp_path / "new" / "run"
    config = tiny_run.make_config(tiny_records, run_dir, num_train_steps=1000)
    checks, status = table_of(config, capsys)
    assert status == 0
    assert not failed(checks)
    # ln 400 + ln 2, and 1000 steps.
    assert "guessing gives 6.685" in checks["loss"]
    assert "1,000 steps" in checks["the whole run"]
    assert "tokens/s" in checks["updates"]
    assert "new" in checks["run"]
    assert not list(tmp_path.iterdir())


def test_the_command_exits_with_the_verdict(tiny_records, tmp_path):
    """In a process of its own, and with a fault, 1."""
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", dry_run=True, global_batch_size=7,
        strategy="mirrored", num_logical_cpus=2,
    )  # fmt: skip
    assert RunProcesses(config, tmp_path).wait() == [1]
    assert not (tmp_path / "run").exists()


def test_faults_are_all_in_one_table(tiny_records, tmp_path, capsys):
    """The output is a file, and the records are not there."""
    (tmp_path / "run").write_text("a file")
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run" / "x", input_file=("nothing*",)
    )
    checks, status = table_of(config, capsys)
    assert status == 1
    assert failed(checks) == {"output", "records"}
    assert "no file at nothing*" in checks["records"]
    assert "--output_dir" in checks["output"]
    for name in ("held-out records", "run", "updates"):
        assert checks[name].startswith("skip")


def test_records_of_other_lengths_fail(tiny_records, tmp_path, capsys):
    config = tiny_run.make_config(tiny_records, tmp_path, max_seq_length=24)
    checks, status = table_of(config, capsys)
    assert status == 1
    assert "max_seq_length" in checks["records"]


def test_a_small_disk_fails(tiny_records, small_disk, capsys):
    config = tiny_run.make_config(tiny_records, small_disk / "run")
    checks, status = table_of(config, capsys)
    assert status == 1
    assert failed(checks) == {"room"}
    # 3 x 4 bytes a parameter, 5 + 2 checkpoints.
    needed = 7 * 12 * num_parameters(tiny_run.MODEL, "sop") / 1e9
    assert f"need {needed:.1f} GB" in checks["room"]
    assert not list(small_disk.iterdir())


def test_a_vocabulary_that_is_not_the_records_fails(
    tiny_records, tmp_path, capsys
):
    config = tiny_run.make_config(tiny_records, tmp_path, vocab_size=401)
    checks, status = table_of(config, capsys)
    assert status == 1
    assert "vocab_size" in checks["records"]


def test_a_run_that_is_there_tells_its_step(tiny_records, tmp_path, capsys):
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records, run_dir, num_train_steps=4, eval_input_file=()
    )
    train(config)
    before = sorted(run_dir.rglob("*"))
    checks, _ = table_of(config, capsys)
    assert "goes on from step 4" in checks["run"]
    assert checks["held-out records"].startswith("warn")
    assert sorted(run_dir.rglob("*")) == before

    other = tiny_run.make_config(
        tiny_records, run_dir, num_train_steps=4, learning_rate=0.5
    )
    checks, status = table_of(other, capsys)
    assert status == 1
    assert "learning_rate was 0.02 and is 0.5" in checks["run"]


def test_a_file_system_that_is_not_known_fails(tiny_records, capsys):
    config = tiny_run.make_config(tiny_records, "nowhere://bucket/run")
    checks, _ = table_of(config, capsys)
    assert "output" in failed(checks)
    assert "gcs-filesystem" in checks["output"]
