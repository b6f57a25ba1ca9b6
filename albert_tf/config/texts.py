"""Settings of the commands that ask exported models about texts."""

import dataclasses

from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class TextsConfig(Config):
    """The texts to ask a model about.

    Example:
        >>> TextsConfig(text=("Tom fell.", "Ann sat."), text_pair=("He rose.",)
        ...             ).second_texts()
        ('He rose.', 'He rose.')
    """

    text: tuple[str, ...] = setting(
        (),
        "For a pretrained model, a sentence with at least one [MASK], or the "
        "first text of a pair. For a fine-tuned model, the text to classify, "
        "or the text that a question is about. Give the flag once per text, "
        "e.g. --text='Paris is the [MASK] of France.'.",
        repeated=True,
    )
    text_pair: tuple[str, ...] = setting(
        (),
        "Second text of a pair. For a pretrained model, the command then "
        "prints the probability that text_pair follows text, e.g. "
        "--text_pair='It was dark inside.'. Give the flag once for all texts, "
        "or once per text, in the same order.",
        repeated=True,
    )
    question: tuple[str, ...] = setting(
        (),
        "Question about the text, for question answering and multiple choice. "
        "Give the flag once per question, e.g. --question='Who wrote it?'. The "
        "model answers every question for every text.",
        repeated=True,
    )
    choice: tuple[str, ...] = setting(
        (),
        "Possible answer, for multiple choice. Give the flag once per choice, "
        "as many times as a question of the training data has choices, e.g. "
        "--choice='Jane Austen' --choice='Mary Shelley'.",
        repeated=True,
    )

    def check(self) -> None:
        super().check()
        for name in ("text", "text_pair", "question", "choice"):
            _check_utf8(name, getattr(self, name))
        if len(self.text_pair) not in (0, 1, len(self.text)):
            raise UserError(
                "text_pair must be given once, or once per text",
                received=f"{len(self.text_pair)} for {len(self.text)} texts",
            )

    def second_texts(self) -> tuple[str, ...]:
        """The second text of each pair; empty without `text_pair`."""
        if len(self.text_pair) == 1:
            return self.text_pair * len(self.text)
        return self.text_pair


def _check_utf8(name: str, texts: tuple[str, ...]) -> None:
    """Refuses bytes that are not UTF-8: surrogates in texts of Python."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{name} must be UTF-8", received=repr(text)
            ) from None


@dataclasses.dataclass(frozen=True)
class PredictConfig(TextsConfig):
    """Settings of `python -m albert_tf.predict`."""

    saved_model_dir: str = setting(
        "", "Directory of the SavedModel to load, e.g. export/sst2."
    )


@dataclasses.dataclass(frozen=True)
class ServingClientConfig(TextsConfig):
    """Settings of `python -m albert_tf.serving.client`.

    Example:
        >>> config = ServingClientConfig(
        ...     server="grpc://localhost:8500",
        ...     text=("The door opened.",),
        ...     text_pair=("It was dark inside.",),
        ... )
        >>> config.model_name
        'albert'
    """

    server: str = setting(
        "http://localhost:8501",
        "Address of the server: http://HOST:PORT for REST, grpc://HOST:PORT "
        "for gRPC.",
    )
    model_name: str = setting("albert", "Name of the model on the server.")
    saved_model_dir: str = setting(
        "",
        "For a model for question answering: a copy of the export that the "
        "server has, local or gs://, e.g. export/squad/1. The client needs its "
        "vocabulary and settings.",
    )
