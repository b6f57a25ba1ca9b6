import json

import matplotlib.image
import numpy as np
import pytest

from albert_tf import report
from albert_tf.errors import UserError


def write_run(directory, losses):
    directory.mkdir()
    lines = [
        {
            "split": split,
            "step": step,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": 0.25,
            "sentence_order_loss": 0.7,
            "sentence_order_accuracy": 0.5,
            "learning_rate": 0.001,
            "dropout": 0.1,
        }
        for step, loss in enumerate(losses)
        for split in ("train", "eval")
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text)
    metadata = {"unigram_entropy_nats": 6.5}
    (directory / "records_metadata.json").write_text(json.dumps(metadata))
    return str(directory)


def draw(tmp_path, *runs):
    picture = tmp_path / "curves.png"
    report.draw(runs, str(picture))
    return matplotlib.image.imread(picture)


def test_the_picture_shows_the_curves(tmp_path):
    """Another loss is another picture, in the loss panel alone."""
    one = draw(tmp_path, write_run(tmp_path / "run", [8.0, 7.0, 5.0]))
    (tmp_path / "b").mkdir()
    other = draw(tmp_path, write_run(tmp_path / "b" / "run", [8.0, 6.0, 5.0]))
    height, width = one.shape[0] // 2, one.shape[1] // 2
    differs = (one != other).any(axis=-1)

    assert one.shape[0] > 500 and one.shape[1] > 800
    assert differs[:height, :width].any()
    assert not differs[:height, width:].any()
    assert not differs[height:].any()


def test_several_runs_stand_in_one_picture(tmp_path):
    first = write_run(tmp_path / "first", [8.0, 7.0])
    second = write_run(tmp_path / "second", [7.0, 6.0])
    assert np.any(draw(tmp_path, first) != draw(tmp_path, first, second))


def test_a_directory_without_metrics_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        draw(tmp_path, str(tmp_path))


def test_the_newest_held_out_figures_stand_beside_the_unigram_entropy(tmp_path):
    run = write_run(tmp_path / "run", [8.0, 7.0])
    assert report.summarize(run) == (
        f"{run}, step 1, held out: mlm 7.000 (25.0%), sop 0.700 (50.0%); "
        "unigram entropy of the corpus 6.500"
    )
