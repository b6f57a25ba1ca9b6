"""The model card lists what the run directory has."""

import dataclasses
import json

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.interop import hugging_face
from albert_tf.runs.directory import write_config
from tests.helpers import tiny_run
from tests.helpers.tiny_albert import TINY, random_weights


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
    weights = random_weights(config.model, step=8)
    folder = tmp_path / "folder"
    hugging_face.write(weights, str(folder), run_dir, licence="cc-by-sa-4.0")

    card = (folder / "README.md").read_text()
    fields, text = card.removeprefix("---\n").split("---\n", 1)
    assert "license: cc-by-sa-4.0\n" in fields
    metadata = json.loads(metadata)
    for passage in (
        f"{weights.num_parameters:,} parameters",
        "for 8 steps",
        "| hidden_size | 16 |",
        f"| documents | {metadata['num_documents']} |",
        f"| SHA-256 of the vocabulary | {metadata['vocabulary_sha256']} |",
        "| optimizer | lamb |",
        "| learning_rate | 0.02 |",
        "| sentence_objective | sop |",
        "| masked_lm_loss | 5.5123 |",
        "after 8 steps",
    ):
        assert passage in text
    assert "4.4" not in text
    assert "7.7777" not in text
    assert "evaluation_seconds" not in text


def test_the_card_of_a_fine_tuned_model_lists_settings_of_fine_tuning(
    tmp_path,
):
    """Pretraining has no task, and fine-tuning no schedule of dropout."""
    head = TaskHeadConfig("classification", ("no", "yes"))
    weights = random_weights(TINY, "none", head=head)
    config = dataclasses.replace(FinetuningConfig(), head=head).replace(
        task="sst2", dropout=0.25, classifier_dropout=0.125
    )

    def card_of(run, config):
        write_config(str(tmp_path / run), config)
        folder = tmp_path / f"{run}_folder"
        hugging_face.write(weights, str(folder), str(tmp_path / run))
        return (folder / "README.md").read_text()

    card = card_of("run", config)
    for row in ("task | sst2", "dropout | 0.25", "classifier_dropout | 0.125"):
        assert f"| {row} |" in card
    assert "dropout_schedule" not in card
    # A converted run has no task; its other settings are not those of training.
    card = card_of("converted", config.replace(task=""))
    assert "## Training\n\nUnknown.\n" in card


def test_the_card_says_what_is_unknown(folder):
    card = (folder[0] / "README.md").read_text()
    assert card.startswith("---\nlicense: unknown\n")
    assert "## Data\n\nUnknown.\n" in card
    assert "## Evaluation\n\nUnknown.\n" in card
    assert "not stated at export" in card


def test_a_folder_without_sentence_head_still_names_the_objective(
    tmp_path, tiny_records
):
    """Without the run, the objective of a model without the head is unknown."""
    config = tiny_run.make_config(tiny_records, tmp_path / "run")
    write_config(config.training.output_dir, config)
    weights = random_weights(config.model)
    cards = []
    for run_dir in (config.training.output_dir, ""):
        folder = tmp_path / f"folder{len(cards)}"
        hugging_face.write(
            weights, str(folder), run_dir, with_sentence_head=False
        )
        cards.append((folder / "README.md").read_text())

    assert all("The folder has no sentence head." in card for card in cards)
    assert "| sentence_objective | sop |" in cards[0]
    assert "| sentence_objective | unknown |" in cards[1]
