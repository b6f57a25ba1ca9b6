"""The model card lists what the run directory has."""

import dataclasses
import json

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.interop import hugging_face
from albert_tf.runs.directory import write_config
from tests.helpers import tiny_run
from tests.helpers.tiny_albert import TINY, random_weights


def card_of(tmp_path, weights, **more):
    hugging_face.write(weights, str(tmp_path / "folder"), **more)
    return (tmp_path / "folder" / "README.md").read_text()


def test_the_card_lists_data_settings_and_metrics(tmp_path, tiny_records):
    """The metrics are of the last evaluation at or before the step."""
    config = tiny_run.make_config(tiny_records, tmp_path / "run")
    run_dir = config.training.output_dir
    write_config(run_dir, config)
    metadata = (tiny_records / "train" / "metadata.json").read_text()
    (tmp_path / "run" / "records_metadata.json").write_text(metadata)
    lines = [
        {
            "split": "eval",
            "step": 8,
            "masked_lm_loss": 5.51234,
            "evaluation_seconds": 7.0,
        },
        {"split": "train", "step": 8, "masked_lm_loss": 7.7777},
        {"split": "eval", "step": 12, "masked_lm_loss": 4.4},
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    weights = random_weights(config.model, step=8, run_dir=run_dir)

    card = card_of(
        tmp_path, weights, licence="cc-by-sa-4.0", with_sentence_head=False
    )

    fields, text = card.removeprefix("---\n").split("---\n", 1)
    assert "license: cc-by-sa-4.0\n" in fields
    metadata = json.loads(metadata)
    for passage in (
        "8 steps",
        "It has no sentence head.",
        "| hidden_size | 16 |",
        f"| num_documents | {metadata['num_documents']} |",
        f"| vocabulary_sha256 | {metadata['vocabulary_sha256']} |",
        "| optimizer | lamb |",
        "| learning_rate | 0.02 |",
        "| sentence_objective | sop |",
        "| masked_lm_loss | 5.5123 |",
        "| step | 8 |",
    ):
        assert passage in text
    for absent in ("4.4", "7.7777", "evaluation_seconds"):
        assert absent not in text


def test_the_card_of_a_fine_tuned_model_lists_settings_of_fine_tuning(tmp_path):
    """A converted run has no task; its other settings are unknown."""
    head = TaskHeadConfig("classification", ("no", "yes"))
    run_dir = str(tmp_path / "run")
    weights = random_weights(TINY, "none", head=head, run_dir=run_dir)
    config = dataclasses.replace(FinetuningConfig(), head=head).replace(
        task="sst2", dropout=0.25, classifier_dropout=0.125
    )
    write_config(run_dir, config)
    card = card_of(tmp_path, weights)
    for row in ("task | sst2", "dropout | 0.25", "classifier_dropout | 0.125"):
        assert f"| {row} |" in card
    assert "fill-mask" not in card
    write_config(run_dir, config.replace(task=""))
    assert "## Training\n\nUnknown.\n" in card_of(tmp_path, weights)


def test_the_card_says_what_is_unknown(folder):
    card = (folder[0] / "README.md").read_text()
    assert card.startswith("---\nlicense: unknown\n")
    assert "## Data\n\nUnknown.\n" in card
    assert "nats.\n\nUnknown.\n" in card
    assert "not stated at export" in card
