"""A SavedModel in this process, with the methods of a client of a server.

It needs the SavedModel and tensorflow-text, and none of the model's code.
"""

import posixpath
from typing import Any

import tensorflow as tf

from albert_tf.config import PredictConfig
from albert_tf.errors import UserError
from albert_tf.io.files import exists
from albert_tf.serving.names import ASSETS_DIR, SERVING_FILE
from albert_tf.serving.responses import print_responses
from albert_tf.serving.task_requests import Inputs, decode
from albert_tf.serving.text_tokenizer import import_text_ops


def load_saved_model(saved_model_dir: str) -> Any:
    """Loads an export, and the operations that tokenize text.

    Raises:
        UserError: If the directory is not an export, or if tensorflow-text is
            missing.
    """
    serving_path = posixpath.join(saved_model_dir, ASSETS_DIR, SERVING_FILE)
    if not exists(serving_path):
        raise UserError(
            "saved_model_dir must be a SavedModel of albert_tf",
            received=f"{saved_model_dir}, without {SERVING_FILE}",
            remedy="Make one with python -m albert_tf.export_saved_model.",
        )
    import_text_ops()
    return tf.saved_model.load(saved_model_dir)


class LocalClient:
    """A `task_requests.Client` of a SavedModel in this process.

    Args:
        saved_model_dir: A directory that `albert_tf.export_saved_model` wrote,
            local or gs://.

    Attributes:
        model: The loaded SavedModel.

    Raises:
        UserError: If the directory is not such an export, or if
            tensorflow-text is missing.

    Example:
        >>> from albert_tf.serving.task_requests import ask, find_task
        >>> client = LocalClient("export/squad")  # doctest: +SKIP
        >>> task = find_task(client.list_signatures())  # doctest: +SKIP
        >>> (answer,) = ask(  # doctest: +SKIP
        ...     client,
        ...     task,
        ...     PredictConfig(
        ...         text=("It lies on the Rhine.",), question=("Where?",)
        ...     ),
        ... )
        >>> list(answer)  # doctest: +SKIP
        ['answer', 'end', 'null_odds', 'null_score', 'score', 'start']
    """

    def __init__(self, saved_model_dir: str) -> None:
        self.model = load_saved_model(saved_model_dir)

    def list_signatures(self) -> list[str]:
        """See `Client`."""
        return sorted(self.model.signatures)

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        """See `Client`.

        Raises:
            UserError: If the model takes another number of choices.
        """
        function = self.model.signatures[signature]
        _, specs = function.structured_input_signature
        tensors = {name: tf.constant(texts) for name, texts in inputs.items()}
        for name, tensor in tensors.items():
            wanted = specs[name].shape
            if not wanted.is_compatible_with(tensor.shape):
                raise UserError(
                    f"{name} must have {wanted[1]} entries for each question, "
                    "as in training",
                    received=tensor.shape[1],
                )
        return {
            name: decode(values.numpy().tolist())
            for name, values in function(**tensors).items()
        }


def print_predictions(config: PredictConfig) -> None:
    """Prints the answers of an exported model to the texts of the flags."""
    config.require("saved_model_dir", "text")
    print_responses(LocalClient(config.saved_model_dir), config)
