"""The commands of docs/finetuning.md and of `predict`, on small files."""

import json
import pathlib
import re
import shlex

import numpy as np
import pytest
from absl import flags as absl_flags

from albert_tf import predict
from albert_tf.config import (
    ExportConfig,
    FinetuningConfig,
    PredictConfig,
    flags,
)
from albert_tf.config.task import ScoreConfig
from albert_tf.finetuning import score
from albert_tf.finetuning.run import run
from albert_tf.finetuning.score import score_answers, write_answers
from albert_tf.records.documents import Candidate, QuestionAnswer
from albert_tf.serving.export import export
from albert_tf.serving.predict import print_predictions

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "finetuning.md").read_text()

# As in the files of GLUE: quotation marks are characters, and texts may end in
# a space.
TRAIN = "\n".join(
    [
        "sentence\tlabel",
        "hide new secretions from the parental units \t0",
        "contains no wit , only labored gags \t0",
        "that loves its characters \t1",
        'a depressed fifteen-year-old \'s "suicidal" poetry \t0',
        *(f"are more deeply thought through than {n} films \t1" for n in "abc"),
        *(f"goes to absurd lengths , {n} \t0" for n in "abc"),
    ]
)
TEST = 'index\tsentence\n0\tuneasy mishmash .\n1\ta "new" film . \n'

# A run of seconds: the recipe has 20,935 steps of 32 examples.
QUICK = (
    *("--num_train_steps=2", "--num_warmup_steps=1", "--steps_per_loop=2"),
    *("--global_batch_size=4", "--eval_batch_size=4", "--max_seq_length=64"),
    "--strategy=one_device",
)


def command_in(text, module):
    """The arguments of the first command with a module in a document."""
    found = re.search(rf"-m {re.escape(module)}((?: .*\\\n)*.*)", text)
    return shlex.split(found.group(1).replace("\\\n", " "))


def parse(config_class, arguments):
    flag_values = absl_flags.FlagValues()
    flags.define(config_class, flag_values)
    flag_values(["command", *arguments])
    return flags.parse(config_class, flag_values)


@pytest.mark.slow
def test_the_commands_for_sst2_train_predict_export_and_answer(
    tiny_tasks, tmp_path, monkeypatch, capsys
):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/base").symlink_to(tiny_tasks / "model")
    data = tmp_path / "glue_data/SST-2"
    data.mkdir(parents=True)
    for name, text in [
        ("train.tsv", TRAIN),
        ("dev.tsv", TRAIN),
        ("test.tsv", TEST),
    ]:
        (data / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    arguments = command_in(DOCUMENT, "albert_tf.run_finetuning")
    config = parse(FinetuningConfig, [*arguments, *QUICK])
    assert run(config) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 10
    config = parse(FinetuningConfig, [*arguments, *QUICK, "--mode=predict"])
    assert run(config) == 0
    lines = (tmp_path / "runs/sst2/predictions/SST-2.tsv").read_text()
    header, *rows = lines.splitlines()
    assert header == "index\tprediction"
    assert [row.split("\t")[0] for row in rows] == ["0", "1"]

    text = predict.__doc__
    export(
        parse(ExportConfig, command_in(text, "albert_tf.export_saved_model"))
    )
    capsys.readouterr()
    print_predictions(
        parse(PredictConfig, command_in(text, "albert_tf.predict"))
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["label"] in ("0", "1")
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_the_command_for_squad_v2_gives_the_scores_of_the_run(
    squad, tmp_path, monkeypatch
):
    """At a threshold above 1, the default of --na_prob_thresh. The best
    scores are those of the answers without the threshold."""
    rng = np.random.default_rng(0)
    answers = [
        QuestionAnswer(
            question.id,
            (Candidate(text, 0, len(text), 1.0, 1.0),),
            0.0,
            rng.normal(-1.0 if question.answers else 4.0, 3.0),
        )
        for question in squad.examples
        for text in [question.answers[0].text if question.answers else "wrong"]
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dev-v2.0.json").symlink_to(squad.source)
    write_answers(".", answers, null_threshold=2.5)

    command = command_in(DOCUMENT, "albert_tf.finetuning.score")
    scores = score.compute_scores(parse(ScoreConfig, command))

    best = {answer.id: answer.text() for answer in answers}
    odds = {answer.id: answer.null_odds for answer in answers}
    assert scores == score_answers(squad.examples, best, odds, 2.5)
    assert scores["best_f1_thresh"] > 1
    others = score_answers(squad.examples, best, odds, 1.0)
    assert others["HasAns_f1"] < scores["HasAns_f1"]
