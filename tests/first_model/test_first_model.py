"""A first model from a folder of text, by one command."""

import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import albert_tf
from albert_tf.cluster import devices
from albert_tf.config import FirstModelConfig, ModelConfig
from albert_tf.errors import UserError
from albert_tf.first_model import __main__ as first_model
from albert_tf.first_model import plan as planning
from albert_tf.first_model.plan import SHAPES, Device, corpus_flags, make_plan
from albert_tf.first_model.stages import ENDLESS
from albert_tf.first_model.verdict import BEST, BETTER, WORSE, judge
from albert_tf.io import cpu, files
from albert_tf.io.shipped import MODEL, find
from albert_tf.runs.log import read_events
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


TEXT = {
    "characters": 3_000_000,
    "documents": 2000,
    "joined_lines": 0,
    "lost_accents": "",
}
TWO_CORES = Device("2 CPU cores", 2.7e11)


def plan_of(minutes=10.0, device=TWO_CORES, text=TEXT, **settings):
    config = FirstModelConfig(
        ("a.txt",), output_dir="out", minutes=minutes, **settings
    )
    return make_plan(config, text, device)


def test_the_vocabulary_follows_from_the_text(tmp_path):
    plan = plan_of(text={**TEXT, "characters": 700_000, "documents": 4})
    assert plan.vocabulary_flags[-1] == "--vocab_size=2000"
    assert "--keep_accents" in plan.vocabulary_flags
    assert "continue the released model" in plan.facts[0]
    assert "accents are kept" in plan.facts[1]
    # Of few documents, some are held out.
    assert plan.records_flags[-1] == "--holdout_fraction=0.5"
    large = plan_of(text={**TEXT, "characters": 300_000_000})
    assert large.facts[0].startswith("text: ")
    assert large.vocabulary_flags[-1] == "--vocab_size=4000"
    chinese = plan_of(language="zh")
    assert "--vocab_size=8000" in chinese.vocabulary_flags
    assert "--byte_fallback" in chinese.vocabulary_flags
    folder = FirstModelConfig((str(tmp_path),))
    assert f"--input_file={tmp_path}/**" in corpus_flags(folder)


def test_a_faster_machine_and_more_time_give_the_same_larger_model():
    """Half an hour on two cores, one, a night, a faster machine, and a GPU."""
    lengths = [plan_of(minutes).lengths for minutes in (30, 60, 480)]
    assert lengths == [(16, 64), (16, 64, 128), (64, 128, 512)]
    six_times = plan_of(
        20, TWO_CORES._replace(flop_rate=6 * TWO_CORES.flop_rate)
    )
    assert six_times.training_flags == plan_of(120).training_flags
    assert six_times.objective == "sop"
    assert "--sentence_objective=none" in six_times.shape_flags(16)
    gpu = plan_of(
        10, Device("1 GPU", 3e14), {**TEXT, "characters": 1_000_000_000}
    )
    assert "--albert_config_file=albert_base_v2" in gpu.training_flags
    for shape in SHAPES:
        ModelConfig.from_json_file(shape.architecture).with_overrides(
            [shape.model]
        )


@pytest.mark.parametrize(
    ("cpu_has", "gpu", "precision"),
    [
        ("avx2 avx512f", "", "float32"),
        ("avx2 avx512f amx_bf16", "", "mixed_bfloat16"),
        ("amx_bf16", "Tesla T4", "float32"),
        ("avx2", "NVIDIA H100 80GB HBM3", "mixed_bfloat16"),
    ],
)
def test_a_device_with_products_of_bfloat16_uses_them(
    tmp_path, monkeypatch, cpu_has, gpu, precision
):
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    (tmp_path / "cpuinfo").write_text(f"flags : {cpu_has}")
    monkeypatch.setattr(cpu, "_INFORMATION", tmp_path / "cpuinfo")
    (tmp_path / "0").mkdir()
    (tmp_path / "0/information").write_text(f"Model: \t {gpu}\nIRQ: 7")
    monkeypatch.setattr(planning, "_DRIVER", tmp_path)
    monkeypatch.setattr(devices, "find_gpus", lambda: ["0"] if gpu else [])
    device = planning.find_device()
    assert gpu in device.name
    assert f"--precision={precision}" in plan_of(device=device).training_flags


def test_the_model_of_a_run_can_be_continued(tmp_path):
    """Its config.json also has fields that --model does not take."""
    shipped = pathlib.Path(find("albert_mini_en", MODEL))
    (tmp_path / "spiece.model").symlink_to(shipped / "spiece.model")
    model = ModelConfig(vocab_size=8000, num_hidden_layers=3)
    settings = {"model": model.to_dict(), "training": {}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    text = {**TEXT, "lost_accents": "'f\xfcr' becomes 'fur'"}
    plan = plan_of(init_checkpoint=str(tmp_path), text=text)
    values = plan.training_flags[1].removeprefix("--model=")
    assert ModelConfig().with_overrides([values]) == model
    assert "accents are dropped, as by the vocabulary ('f" in plan.facts[0]


def test_symbols_are_planned():
    """Neither sentences nor case; longer examples, since words are longer."""
    plan = plan_of(minutes=120, symbols="text")
    assert plan.vocabulary_flags[-1] == "--symbols=text"
    assert "--sentence_breaker=none" in plan.records_flags
    assert "--do_lower_case=False" in plan.records_flags
    assert (plan.lengths, plan.objective) == ((64, 128), "none")
    assert not any("vocab_size" in flag for flag in plan.training_flags)
    # A text has more symbols than pieces, and so fewer passes.
    assert (plan_of(30).dropout, plan_of(30, symbols="text").dropout) == (
        0.1,
        0,
    )


def test_text_that_is_read_often_gets_dropout():
    # 3 MB, ten minutes and half an hour on two cores.
    assert plan_of(10).dropout == 0
    assert plan_of(30).dropout == 0.1


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
    continued = judge(loss, figures, [first, last], minutes=10, before=4.2)
    assert "The initial model is better (loss 4.20)" in continued.advice


# By name: the setting and its value, and words of the refusal, by the reader of
# the text or by first_model.
REFUSALS = {
    "no such file": ("input_file", ("none/*.txt",), "input_file must match"),
    "a PDF": ("input_file", ("a.pdf",), "e.g. with pdftotext"),
    "too little text": ("input_file", ("small.txt",), "200,000 characters"),
    "its own output": ("input_file", ("**/*.txt",), "must not be in a folder"),
    "no time": ("minutes", 0.1, "minutes must be at least 1"),
    "no model": ("init_checkpoint", "none", "init_checkpoint must be a run"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_dry_run_refuses_what_cannot_become_a_model(
    case, corpus, monkeypatch, capfd
):
    monkeypatch.chdir(corpus)
    (corpus / "small.txt").write_text(f"{WORDS}\n" * 20)
    (corpus / "a.pdf").write_bytes(b"%PDF-1.4 " * 100_000)
    name, value, message = REFUSALS[case]
    settings = {"input_file": ("a.txt", "b.txt"), name: value}
    with pytest.raises((UserError, SystemExit)) as error:
        first_model.main(
            FirstModelConfig(output_dir="out", dry_run=True, **settings)
        )
    assert message in f"{error.value} {capfd.readouterr().err}"
    assert not os.path.exists("out")


@pytest.mark.slow
def test_a_gpu_that_tensorflow_cannot_use_is_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UserError, match="TensorFlow must be able to use the"):
        first_model.check_accelerator()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    first_model.check_accelerator()


def in_stages(folder, code):
    """Makes the process of the stages run code, and no other Python."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'albert_tf.first_model.stages' in sys.orig_argv:\n"
        + textwrap.indent(code, "    ")
    )
    return f"{folder}{os.pathsep}{os.getcwd()}"


# By name: what the stages do, the time used before, and words of the error.
FAILURES = {
    # With its last line, as a library writes it before it calls abort().
    "aborts": (
        "os.write(2, b'bad table')\nos.abort()",
        0,
        "SIGABRT: bad table",
    ),
    "is refused": (
        "os.write(2, b'error: no disk. Buy one.')\nos._exit(1)",
        0,
        "^no disk. Buy one.$",
    ),
    "is late": ("time.sleep(100)", 1000, "minutes must be enough for some"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_failure_of_the_stages_is_explained(
    case, corpus, tmp_path, monkeypatch
):
    code, seconds, message = FAILURES[case]
    monkeypatch.setenv("PYTHONPATH", in_stages(tmp_path, code))
    out = tmp_path / "out"
    config = FirstModelConfig((str(corpus),), output_dir=str(out))
    other = out / "records/a file of the user"
    other.parent.mkdir(parents=True)
    other.touch()
    # Until the training begins, the directory takes other settings.
    state = first_model.read_state(config.replace(minutes=2))
    files.write_json(str(out / "first_model.json"), state)
    state = first_model.read_state(config)
    assert state["overwrite"]
    files.write_json(
        str(out / "first_model.json"), {**state, "seconds": seconds}
    )
    with pytest.raises(UserError, match=message):
        first_model.main(config)
    assert other.exists()


def test_a_complete_model_gets_more_time(tmp_path):
    out = tmp_path / "out"
    (out / "runs/decay").mkdir(parents=True)
    (out / "runs/decay/metrics.jsonl").touch()
    config = FirstModelConfig((str(tmp_path),), output_dir=str(out))
    state = {
        "settings": config.result_settings(),
        "text": TEXT,
        "device": TWO_CORES,
        "plan": plan_of()._asdict(),
        "round": 0,
        "is_complete": True,
        "seconds": 590.0,
    }
    files.write_json(str(out / "first_model.json"), state)
    assert first_model.read_state(config)["is_complete"]
    longer = first_model.read_state(config.replace(minutes=30))
    assert longer["start"] == f"{out}/runs/64_tokens"
    assert longer["round"] == 1
    assert not longer["is_complete"]
    # As before, if that was interrupted.
    files.write_json(str(out / "first_model.json"), longer)
    longest = first_model.read_state(config.replace(minutes=40))
    assert longest["round"] == 1
    assert longest["settings"]["minutes"] == 40
    files.write_json(str(out / "first_model.json"), state)
    # It keeps its vocabulary and architecture.
    assert longer["plan"]["dropout"] == 0.1
    assert longer["plan"]["lengths"] == [16, 64]
    for changes in ({"minutes": 5}, {"minutes": 30, "language": "de"}):
        with pytest.raises(UserError, match="of other settings"):
            first_model.read_state(config.replace(**changes))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_command_stops_when_first_model_is_killed(
    corpus, tmp_path, monkeypatch
):
    code = "print(os.getpid(), flush=True)\ntime.sleep(100)"
    monkeypatch.setenv("PYTHONPATH", in_stages(tmp_path, code))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "albert_tf.first_model"]
    process = subprocess.Popen(
        [*command, f"--input_file={corpus}", f"--output_dir={out}"]
    )
    printed = out / "results.txt"
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
def test_text_becomes_a_model_also_after_an_interruption(
    corpus, tmp_path, monkeypatch
):
    out = tmp_path / "model"
    with open(corpus / "a.txt", "ab") as file:
        file.write(b"a caf\xe9 in Latin-1\n")
    command = [
        *(sys.executable, "-m", "albert_tf.first_model"),
        f"--input_file={corpus}",
        f"--output_dir={out}",
        "--text_flags=--on_bad_utf8=replace",
        "--minutes=10",
    ]
    # A second core would hardly help so small a model.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    # As if almost no time was left for the stages before the decay.
    out.mkdir()
    files.write_json(f"{out}/time.json", {"seconds": 0.1})
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = out / "runs/decay/metrics.jsonl"
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().endswith("\n")
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    first_lines = metrics.read_text().splitlines()
    other = subprocess.run(
        [*command, "--language=de"], capture_output=True, text=True
    )
    assert "language was 'en' and is 'de'" in other.stderr
    # As if almost all of the time had passed.
    state = files.load_json(f"{out}/first_model.json")
    files.write_json(f"{out}/first_model.json", {**state, "seconds": 575.0})
    # More text would be given a larger vocabulary.
    (corpus / "b.txt").write_text(f"{WORDS}\n" * 20_000)

    result = subprocess.run(command, capture_output=True, text=True)
    summary = json.loads((out / "summary.json").read_text())
    # On a slow machine, the time may be too little.
    status = first_model.EXIT_WORSE if summary["verdict"] == WORSE else 0
    assert result.returncode == status, result.stderr
    assert summary["advice"] in result.stdout
    # The interrupted training went on; those before it had used their time.
    assert metrics.read_text().splitlines()[: len(first_lines)] == first_lines
    starts = {
        run.name: [e["event"] for e in read_events(str(run))].count("resume")
        for run in (out / "runs").iterdir()
    }
    assert starts == {"16_tokens": 0, "64_tokens": 0, "decay": 1}
    assert 3 < summary["masked_lm_loss"] < 7  # ln(1500) = 7.3 at random
    assert 3 < summary["five_gram_loss"] < summary["unigram_loss"]
    page = (out / "index.html").read_text()
    assert page.count("[MASK]") >= 4
    assert "data:image/png" in page
    # Each stage can be repeated: its number of steps was found by its time.
    of_stages = re.findall(r"--num_train_steps=(\d+)", page)
    assert len(of_stages) == 3
    # They read the examples in different orders.
    assert len({*re.findall(r"--seed=(\d+)", page)}) == 3
    assert all(20 <= int(number) < ENDLESS for number in of_stages)
    assert os.path.exists(out / "saved_model/saved_model.pb")

    again = subprocess.run(command, capture_output=True, text=True)
    assert again.stdout == result.stdout
    assert (out / "index.html").read_text() == page

    # Its directory stands for the model, which can get more time.
    model, tokenizer = albert_tf.load(out)
    assert len(albert_tf.fill_mask(model, tokenizer, "a [MASK] town")) == 1
    files.write_json(f"{out}/time_1.json", {"seconds": 0.1})
    longer = subprocess.run(
        [*command, f"--minutes={summary['minutes'] + 1}"],
        capture_output=True,
        text=True,
    )
    assert "decay_1" in longer.stdout, longer.stderr
    assert (out / "saved_model_1/saved_model.pb").exists()
    after = json.loads((out / "summary.json").read_text())
    assert after["before"]["masked_lm_loss"] > after["masked_lm_loss"]
