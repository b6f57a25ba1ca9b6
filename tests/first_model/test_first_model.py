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

from albert_tf import first_model
from albert_tf.config import FirstModelConfig, ModelConfig
from albert_tf.errors import UserError
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


# By name: a line of a file, its name, and what the plan says of it.
TEXTS = {
    "sentences": (f"{WORDS}\n", "a.txt", "each is read as a sentence"),
    "old Mac": (f"{WORDS}\r", "a.txt", "each is read as a sentence"),
    "paragraphs": (f"{WORDS * 9}\n", "a.txt", "split into sentences"),
    "one line": (WORDS, "a.txt", "split into sentences"),
    "JSON lines": (
        json.dumps({"text": WORDS, "more": WORDS * 9}) + "\n",
        "a.data",
        "each is read as a sentence",
    ),
    "paragraphs in JSON lines": (
        json.dumps({"text": WORDS * 9}) + "\n",
        "a.json",
        r"--sentence_breaker=sentencex",
    ),
    "Chinese": (
        "国家主席今天在北京会见了外国客人。\n",
        "a.txt",
        "8,000 pieces",
    ),
    "not compressed": (f"{WORDS}\n", "a.gz", "1 files"),
    "comma": (f"{WORDS}\n", "a, b.txt", r"(?m)--input_file=\S+/\*$"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_plan_follows_from_the_text(case, tmp_path):
    line, name, expected = TEXTS[case]
    lines = line * (300_000 // len(line.encode()))
    (tmp_path / name).write_text(lines)
    config = FirstModelConfig(input_file=(str(tmp_path),), output_dir="out")
    plan = first_model.make_plan(config)
    text = "\n".join([*plan.facts, *plan.corpus_flags])
    assert re.search(expected, text)
    assert text.startswith("1 files")


def test_a_gpu_gets_a_larger_model(corpus):
    config = FirstModelConfig((str(corpus),), output_dir="out")
    plans = [
        first_model.make_plan(config.replace(accelerator=name))
        for name in ("cpu", "gpu", "tpu")
    ]
    assert [p.batch_tokens for p in plans] == [1024, 32_768, 131_072]
    assert "albert_base_v2" in plans[1].training_flags[0]


def test_the_model_of_a_run_can_be_continued(corpus, tmp_path):
    """Its config.json also has fields that --model does not take."""
    shipped = pathlib.Path(find("albert_mini_en", MODEL))
    (tmp_path / "spiece.model").symlink_to(shipped / "spiece.model")
    model = ModelConfig(vocab_size=8000, num_hidden_layers=3)
    settings = {"model": model.to_dict(), "training": {}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    plan = first_model.make_plan(
        FirstModelConfig(
            (str(corpus),), output_dir="out", init_checkpoint=str(tmp_path)
        )
    )
    values = plan.training_flags[1].removeprefix("--model=")
    assert ModelConfig().with_overrides([values]) == model


def test_text_that_is_read_often_gets_dropout():
    # What ten minutes and an hour on two cores read of 3 MB.
    assert first_model.choose_dropout(epochs=12.2, share=0.4) == 0
    assert first_model.choose_dropout(epochs=40.4, share=0.4) == 0.1


# By name: the setting and its value, and words of the refusal.
REFUSALS = {
    "no such file": ("input_file", ("none/*.txt",), "input_file must match"),
    "too little text": ("input_file", ("small.txt",), "200,000 bytes of text"),
    "blank text": ("input_file", ("blank.txt",), "must hold text"),
    "its own output": ("input_file", ("**/*.txt",), "must not be in a folder"),
    "no time": ("minutes", 0.1, "minutes must be at least 1"),
    "not local": ("input_file", ("s3://b/a.txt",), "must be local"),
    "no model": ("init_checkpoint", "none", "init_checkpoint must be a run"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_become_a_model_is_refused(case, corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    (corpus / "small.txt").write_text(f"{WORDS}\n" * 20)
    (corpus / "blank.txt").write_text(" \n" * 200_000)
    name, value, message = REFUSALS[case]
    settings = {"input_file": ("a.txt", "b.txt"), name: value}
    with pytest.raises(UserError, match=message):
        first_model.main(FirstModelConfig(output_dir="out", **settings))
    assert not os.path.exists("out")


def test_a_first_model_of_another_version_is_not_continued(corpus, tmp_path):
    config = FirstModelConfig((str(corpus),), output_dir=str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    state = {"settings": config.to_dict(), "plan": {"facts": []}}
    (tmp_path / "out/first_model.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"another version.*first_model\.json"):
        first_model.main(config)


# By name: what each command does, and words of the error.
FAILURES = {
    # With its last line, as a library writes it before it calls abort().
    "aborts": ("os.write(2, b'bad table')\nos.abort()", "SIGABRT: bad table"),
    "holds out nothing": (
        "os.write(2, b'holdout_fraction')\nos._exit(1)",
        "blank lines between documents",
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
    with pytest.raises(UserError, match=message):
        first_model.main(config)


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
        "--minutes=1",
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
    # More text would be given a larger vocabulary.
    (corpus / "b.txt").write_text(f"{WORDS}\n" * 20_000)

    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    # The interrupted training went on, or had used its time.
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert steps[0]["step"] == step
    summary = json.loads((out / "summary.json").read_text())
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
    other = subprocess.run(
        [*command, "--seed=2"], capture_output=True, text=True
    )
    assert "seed was 1 and is 2" in other.stderr
