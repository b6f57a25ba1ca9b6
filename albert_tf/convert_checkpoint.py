r"""Convert models between runs, google-research/albert and Hugging Face.

These commands convert a published checkpoint of google-research/albert to a run
directory, and the best checkpoint of a run to a Hugging Face folder:

    python -m albert_tf.convert_checkpoint \
      --from=albert_base --to=build/albert_base_v2

    python -m albert_tf.convert_checkpoint \
      --from=runs/base/best --to=build/hugging_face

docs/converting.md describes the formats and what each of them can contain.
The command reads and checks the model before it writes anything. The directory
`--to` appears only when it is complete.
"""

from albert_tf.cluster import versions
from albert_tf.config import ConvertConfig, flags


def main(config: ConvertConfig) -> None:
    """Converts the model."""
    versions.import_tensorflow()
    from albert_tf.interop.convert import convert

    convert(config)


if __name__ == "__main__":
    flags.run(main, ConvertConfig)
