"""Settings of the commands after pretraining."""

import dataclasses

from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class ConvertConfig(Config):
    """`python -m albert_tf.convert_checkpoint`."""

    from_: str = setting(
        "",
        "Model to read: a run, or one of its checkpoints; a checkpoint of "
        "google-research/albert, as prefix, directory or .tar.gz; or a Hugging "
        "Face folder. E.g. albert_base_v2.tar.gz.",
    )
    to: str = setting("", "New directory to write, e.g. build/albert_base_v2.")
    to_format: str = setting(
        "auto",
        "What to write: a run, which can be evaluated, exported and trained on "
        "from; a checkpoint of google-research/albert (published); or a "
        "Hugging Face folder. auto is published for a run, and else a run.",
        choices=("auto", "run", "published", "hugging_face"),
    )
    checkpoint_step: int = setting(
        0,
        "Checkpoint to read where there are several; 0 is the newest.",
        at_least=0,
    )
    licence: str = setting(
        "",
        "Licence of the weights, for the card of a Hugging Face folder, an "
        "identifier of their list, e.g. apache-2.0.",
    )
    with_sentence_head: bool = setting(
        True,
        "Whether a Hugging Face folder holds pooler and sentence head, which "
        "AlbertForPreTraining has, and AlbertForMaskedLM has not.",
    )
    verify: bool = setting(
        False,
        "Read again what was written, and compare: every bit; or, of a Hugging "
        "Face folder, what both models answer to the same text, which needs "
        "the extra interop.",
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    """`python -m albert_tf.export_saved_model`."""

    run_dir: str = setting("", "--output_dir of the run to export.")
    export_dir: str = setting("", "Where to write the SavedModel.")
    checkpoint_step: int = setting(
        0, "Checkpoint to export; 0 is the newest.", at_least=0
    )
    top_k: int = setting(5, "Pieces answered for each mask.", at_least=1)
    text_signatures: bool = setting(
        True, "Also answer text, tokenized in the graph by tensorflow-text."
    )


@dataclasses.dataclass(frozen=True)
class FillMaskConfig(Config):
    """`python -m albert_tf.fill_mask`."""

    saved_model_dir: str = setting("", "SavedModel to load.")
    text: tuple[str, ...] = setting(
        (),
        "A sentence with [MASK] in it; give the flag several times.",
        repeated=True,
    )


@dataclasses.dataclass(frozen=True)
class ServingClientConfig(Config):
    """`python -m albert_tf.serving.client`."""

    server: str = setting(
        "http://localhost:8501",
        "Server to ask: http://HOST:PORT for REST, grpc://HOST:PORT for gRPC.",
    )
    model_name: str = setting("albert", "The server's name for the model.")
    text: tuple[str, ...] = setting(
        (),
        "A sentence with [MASK] in it, or, with text_pair, a first text; give "
        "the flag several times.",
        repeated=True,
    )
    text_pair: str = setting("", "Text that may follow the other.")


@dataclasses.dataclass(frozen=True)
class ReportConfig(Config):
    """`python -m albert_tf.report`."""

    run_dirs: tuple[str, ...] = setting(
        (), "--output_dir of one run or several, comma-separated."
    )
    output_file: tuple[str, ...] = setting(
        (),
        "What to write, by its ending: a picture (.png), or a page (.html) "
        "that needs no network; several with commas, e.g. "
        "build/report.html,build/curves.png.",
    )
    x_axis: str = setting(
        "step",
        "What curves are drawn over: updates (step), positions trained on, "
        "padding included (tokens), or hours of training, the time between "
        "processes and that of steps that were lost left out (hours).",
        choices=("step", "tokens", "hours"),
    )

    def check(self) -> None:
        for path in self.output_file:
            if not path.endswith((".png", ".html")):
                raise UserError(
                    "output_file must end in .png or .html",
                    received=path,
                    remedy="Example: --output_file=build/report.html",
                )
