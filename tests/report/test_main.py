import matplotlib.image
import pytest

from albert_tf.config import ReportConfig
from albert_tf.errors import UserError
from albert_tf.report.__main__ import main, summarize
from albert_tf.report.curves import PANELS
from albert_tf.report.runs import RunHistory
from albert_tf.training import train
from tests.helpers import tiny_run
from tests.helpers.html_page import Page
from tests.helpers.logged_run import read_run, write_lines


def test_the_summary_has_the_newest_held_out_metrics(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 7.0])
    assert summarize(run) == (
        f"{run.run_dir}, step 1, held-out set: mlm 7.000 (25.0%), "
        "sop 0.700 (50.0%); unigram entropy of the corpus 6.500"
    )


def test_the_summary_of_fine_tuning_has_the_scores_of_the_task(tmp_path):
    lines = [
        {"split": "eval", "step": step, "loss": 1.25, "matthews": 0.4 + step}
        for step in (1, 2)
    ]
    write_lines(tmp_path / "metrics.jsonl", lines)
    run = RunHistory(str(tmp_path), "run")
    assert summarize(run) == (
        f"{run.run_dir}, step 2, held-out set: loss 1.25, matthews 2.4"
    )


def test_another_file_suffix_is_refused():
    with pytest.raises(UserError, match=r"\.png or \.html.*curves\.pdf"):
        ReportConfig(output_file=("report.html", "curves.pdf"))


@pytest.mark.slow
def test_a_real_run_is_drawn_as_a_page_and_as_a_picture(
    tiny_records, tmp_path, capsys
):
    """With a switch of dropout, and restarted after its last step."""
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        num_train_steps=4,
        dropout_schedule="0:0.1,2:0.0",
        peak_tflops=0.5,
    )
    assert train.train(config) == 0
    assert train.train(config) == 0
    page_file, picture_file = tmp_path / "out.html", tmp_path / "out.png"
    main(
        ReportConfig(
            run_dirs=(str(run_dir),),
            output_file=(str(page_file), str(picture_file)),
        )
    )
    said = capsys.readouterr().out
    assert f"page: {page_file}\ncurves: {picture_file}\n" in said
    page = Page(page_file.read_text())
    assert [cells[2] for cells in page.rows["run"][1:]] == [
        "start",
        "dropout switched",
        "finish",
        "restart",
        "finish",
    ]
    assert page.rows["restarts"] == [["1"]]
    assert page.rows["state"] == [["finished"]]
    assert page.rows["steps"] == [["4 of 4"]]
    assert page.rows["model.num_hidden_layers"] == [["2"]]
    assert page.rows["model.embedding_size"] == [["8"]]
    assert page.rows["records.vocab_size"] == [["400"]]
    assert len(page.all("svg")) == 1
    drawn = [panel for panel in PANELS if not panel.late]
    assert all(panel.title in page.text for panel in drawn)
    assert matplotlib.image.imread(picture_file).size > 1e6
