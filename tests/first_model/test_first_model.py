"""A first model from a folder of text, by one command."""

import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.config import FirstModelConfig, ModelConfig
from albert_tf.errors import UserError
from albert_tf.first_model import __main__ as first_model
from albert_tf.first_model import plan as plan_module
from albert_tf.first_model.plan import make_plan, measure_text
from albert_tf.first_model.verdict import BEST, BETTER, WORSE, judge
from albert_tf.io.shipped import MODEL, find
from tests.helpers.tiny_run import CORPUS

WORDS = "the river runs through the old town and under its seven bridges "


@pytest.fixture
def corpus(tmp_path):
    """A folder with 400 kB of the sample corpus, in two files."""
    with gzip.open(CORPUS, "rt") as file:
        text = file.read(400_000)
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text(text[:200_000])
    (folder / "b.txt").write_text(text[200_000:])
    return folder


def test_the_plan_follows_from_the_text(corpus, tmp_path):
    (corpus / "deeper").mkdir()
    with gzip.open(corpus / "deeper/a, b.txt.gz", "wb") as file:
        file.write(os.urandom(100_000))
    config = FirstModelConfig((str(corpus),), output_dir="out")
    num_bytes = measure_text(config)
    assert 690_000 < num_bytes < 710_000  # a compressed file counts threefold
    plan = make_plan(config, num_bytes)
    assert f"--input_file={corpus}/**" in plan.vocabulary_flags
    assert plan.vocabulary_flags[-1] == "--vocab_size=1500"
    assert "--keep_accents" in plan.vocabulary_flags
    assert "accents are kept" in plan.facts[0]
    large = make_plan(config, 300_000_000)
    assert large.vocabulary_flags[-1] == "--vocab_size=4000"
    chinese = make_plan(config.replace(language="zh"), num_bytes)
    assert "--vocab_size=8000" in chinese.vocabulary_flags
    assert "--byte_fallback" in chinese.vocabulary_flags


def test_a_gpu_gets_a_larger_model(monkeypatch):
    config = FirstModelConfig(("a.txt",), output_dir="out")
    plans = []
    for device in ("cpu", "gpu", "tpu"):
        monkeypatch.setattr(plan_module, "find_device", lambda d=device: d)
        plans.append(make_plan(config, 1_000_000))
    assert [p.batch_tokens for p in plans] == [1024, 32_768, 131_072]
    assert "albert_base_v2" in plans[1].training_flags[0]


def test_the_model_of_a_run_can_be_continued(tmp_path):
    """Its config.json also has fields that --model does not take."""
    shipped = pathlib.Path(find("albert_mini_en", MODEL))
    (tmp_path / "spiece.model").symlink_to(shipped / "spiece.model")
    model = ModelConfig(vocab_size=8000, num_hidden_layers=3)
    settings = {"model": model.to_dict(), "training": {}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = FirstModelConfig(("a.txt",), init_checkpoint=str(tmp_path))
    plan = make_plan(config, 1_000_000)
    values = plan.training_flags[1].removeprefix("--model=")
    assert ModelConfig().with_overrides([values]) == model
    assert "accents are dropped" in plan.facts[0]


def test_text_that_is_read_often_gets_dropout():
    # 3 MB, ten minutes and an hour on two cores.
    config = FirstModelConfig(("a.txt",), output_dir="out", minutes=10)
    assert make_plan(config, 3_000_000).dropout == 0
    assert make_plan(config.replace(minutes=60), 3_000_000).dropout == 0.1


def log_of(losses, step):
    """The lines of the log of a stage that ends at a step."""
    return [{"step": step, "masked_lm_loss": loss} for loss in losses]


# By name: held-out loss; its figures of each half of the first stage; loss on
# the text; number of steps; the verdict, and words of the advice. The
# frequency of the pieces has a loss of 6, 5-grams have 5.
VERDICTS = {
    "too few steps": (6.5, (7, 6.6), 6.5, 300, WORSE, "try --minutes=100"),
    "worse": (6.5, (6.6, 6.6), 6.5, 9000, WORSE, "--init_checkpoint=albert_"),
    "falling": (5.5, (6, 5.7), 5.4, 9000, BETTER, "=20, which may gain about"),
    "by heart": (4.9, (5, 4.5), 4.1, 9000, BEST, "4.10 on it, 4.90 on held-"),
    "at its end": (4.9, (5, 4.96), 4.8, 9000, BEST, "gain little: give more"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_model_is_compared_with_simpler_ones(case):
    loss, (middle, end), on_text, num_steps, text, advice = VERDICTS[case]
    first = log_of([9] * 30 + [middle] * 40 + [end] * 30, num_steps // 3)
    last = log_of([9] * 90 + [on_text] * 10, num_steps - num_steps // 3)
    figures = {"unigram_loss": 6.0, "five_gram_loss": 5.0}
    verdict = judge(loss, figures, [first, last], minutes=10)
    assert verdict.text == text
    assert advice in verdict.advice


# By name: the setting and its value, and words of the refusal.
REFUSALS = {
    "no such file": ("input_file", ("none/*.txt",), "input_file must match"),
    "too little text": ("input_file", ("small.txt",), "200,000 bytes of text"),
    "its own output": ("input_file", ("**/*.txt",), "must not be in a folder"),
    "no time": ("minutes", 0.1, "minutes must be at least 1"),
    "no model": ("init_checkpoint", "none", "init_checkpoint must be a run"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_become_a_model_is_refused(case, corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    (corpus / "small.txt").write_text(f"{WORDS}\n" * 20)
    name, value, message = REFUSALS[case]
    settings = {"input_file": ("a.txt", "b.txt"), name: value}
    with pytest.raises(UserError, match=message):
        first_model.main(FirstModelConfig(output_dir="out", **settings))
    assert not os.path.exists("out")


# By name: what each command does, and words of the error.
FAILURES = {
    # With its last line, as a library writes it before it calls abort().
    "aborts": ("os.write(2, b'bad table')\nos.abort()", "SIGABRT: bad table"),
    "holds out nothing": (
        "import sys\n"
        "os.write(2, b'holdout_fraction ' + sys.orig_argv[-1].encode())\n"
        "os._exit(1)",
        r"holdout_fraction=0\.[3-6]",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_failure_of_a_command_is_explained(
    case, corpus, tmp_path, monkeypatch
):
    code, message = FAILURES[case]
    (tmp_path / "sitecustomize.py").write_text(f"import os\n{code}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = FirstModelConfig(
        input_file=(str(corpus),),
        output_dir=str(tmp_path / "out"),
        init_checkpoint="albert_mini_en",  # the first command builds records
    )
    other = tmp_path / "out/records/a file of the user"
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(UserError, match=message):
        first_model.main(config)
    # Until the training begins, the directory takes other settings.
    with pytest.raises(UserError, match=message):
        first_model.main(config.replace(minutes=2))
    state = json.loads((tmp_path / "out/first_model.json").read_text())
    assert "--overwrite=True" in state["stages"]["records_64"]["command"]
    assert other.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_command_stops_when_first_model_is_killed(
    corpus, tmp_path, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'data_prep.train_tokenizer' in sys.orig_argv:\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(100)"
    )
    path = f"{tmp_path}{os.pathsep}{os.getcwd()}"
    monkeypatch.setenv("PYTHONPATH", path)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "albert_tf.first_model"]
    process = subprocess.Popen(
        [*command, f"--input_file={corpus}", f"--output_dir={out}"]
    )
    printed = out / "logs/vocabulary.out"
    while not (printed.exists() and printed.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    stat = pathlib.Path(f"/proc/{int(printed.read_text())}/stat")
    deadline = time.monotonic() + 10
    # Without a parent that reaps it, an ended process may stay as a zombie.
    while stat.exists() and ") Z" not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.long
def test_text_becomes_a_model_also_after_an_interruption(corpus, tmp_path):
    out = tmp_path / "model"
    with open(corpus / "a.txt", "ab") as file:
        file.write(b"a caf\xe9 in Latin-1\n")
    command = [
        *(sys.executable, "-m", "albert_tf.first_model"),
        f"--input_file={corpus}",
        f"--output_dir={out}",
        "--text_flags=--on_bad_utf8=replace",
        "--minutes=2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = out / "runs/16_tokens/metrics.jsonl"
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().endswith("\n")
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    step = json.loads(metrics.read_text().splitlines()[0])["step"]
    other = subprocess.run(
        [*command, "--minutes=3"], capture_output=True, text=True
    )
    assert "minutes was 2.0 and is 3.0" in other.stderr
    # More text would be given a larger vocabulary.
    (corpus / "b.txt").write_text(f"{WORDS}\n" * 20_000)

    result = subprocess.run(command, capture_output=True, text=True)
    summary = json.loads((out / "summary.json").read_text())
    # On a slow machine, two minutes may be too little.
    status = first_model.EXIT_WORSE if summary["verdict"] == WORSE else 0
    assert result.returncode == status, result.stderr
    assert summary["advice"] in result.stdout
    # The interrupted training went on, or had used its time.
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert steps[0]["step"] == step
    assert 3 < summary["masked_lm_loss"] < 6.5  # ln(1000) = 6.9 at random
    assert 3 < summary["five_gram_loss"] < summary["unigram_loss"]
    page = (out / "index.html").read_text()
    assert page.count("[MASK]") >= 4
    assert "data:image/png" in page
    # Each stage can be repeated: its number of steps was found by its time.
    of_stages = re.findall(r"--num_train_steps=(\d+)", page)
    assert len(of_stages) == 3
    assert step <= int(of_stages[0]) < first_model.ENDLESS
    assert os.path.exists(out / "saved_model/saved_model.pb")

    again = subprocess.run(command, capture_output=True, text=True)
    assert again.stdout == result.stdout
    assert (out / "index.html").read_text() == page
