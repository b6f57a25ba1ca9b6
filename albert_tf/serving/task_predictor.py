"""Predicts with the SavedModel of a fine-tuned model.

It needs the SavedModel and tensorflow-text, and none of the model's code.
"""

import json
import posixpath
from typing import Any

import tensorflow as tf

from albert_tf.config import PredictConfig
from albert_tf.errors import UserError
from albert_tf.serving.names import (
    ASSETS_DIR,
    CLASSIFY,
    PAIR_SUFFIX,
    PREDICT_VALUE,
    SERVING_FILE,
    TEXT_SUFFIX,
)
from albert_tf.serving.text_tokenizer import import_text_ops


class TaskPredictor:
    """An exported model that was fine-tuned, and takes text.

    Args:
        saved_model_dir: A directory that `albert_tf.export_saved_model` wrote,
            local or gs://.

    Raises:
        UserError: If the directory is not such an export, or if
            tensorflow-text is missing.

    Example:
        >>> predictor = TaskPredictor("runs/sst2/export")  # doctest: +SKIP
        >>> found = predictor.predict("A fine film.")  # doctest: +SKIP
        >>> sorted(found)  # doctest: +SKIP
        ['label', 'probabilities']
    """

    def __init__(self, saved_model_dir: str) -> None:
        serving_path = posixpath.join(saved_model_dir, ASSETS_DIR, SERVING_FILE)
        if not tf.io.gfile.exists(serving_path):
            raise UserError(
                "saved_model_dir must be a SavedModel of albert_tf",
                received=f"{saved_model_dir}, without {SERVING_FILE}",
                remedy="Make one with python -m albert_tf.export_saved_model.",
            )
        import_text_ops()
        self._model = tf.saved_model.load(saved_model_dir)
        found = [
            name
            for name in (CLASSIFY, PREDICT_VALUE)
            if name + TEXT_SUFFIX in self._model.signatures
        ]
        if not found:
            raise UserError(
                f"{saved_model_dir} must be a model for classification or "
                "regression that takes text",
                received="signatures " + " ".join(self._model.signatures),
            )
        (self._name,) = found

    def predict(self, text: str, text_pair: str = "") -> dict[str, Any]:
        """Predicts for a text, or for a pair of texts.

        Returns:
            `label`, and `probabilities` by label; or `value`.
        """
        inputs = {"text": tf.constant([text])}
        suffix = TEXT_SUFFIX
        if text_pair:
            inputs["text_pair"] = tf.constant([text_pair])
            suffix = PAIR_SUFFIX
        answer = self._model.signatures[self._name + suffix](**inputs)
        found = {name: values[0].numpy() for name, values in answer.items()}
        if self._name == PREDICT_VALUE:
            return {"value": float(found["value"])}
        return {
            "label": found["label"].decode(),
            "probabilities": {
                label.decode(): float(probability)
                for label, probability in zip(
                    found["labels"], found["probabilities"], strict=True
                )
            },
        }


def print_predictions(config: PredictConfig) -> None:
    """Prints a JSON object for each text."""
    config.require("saved_model_dir", "text")
    predictor = TaskPredictor(config.saved_model_dir)
    for text in config.text:
        print(json.dumps(predictor.predict(text, config.text_pair)))
