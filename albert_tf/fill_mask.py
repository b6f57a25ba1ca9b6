r"""Fill the masks of sentences with an exported SavedModel.

    python -m albert_tf.fill_mask --saved_model_dir=build/demo/saved_model \
      --text='Paris is the [MASK] of France.'

Give --text once per sentence. The command prints the most probable pieces of
each mask. It needs the SavedModel and tensorflow-text, but no model code.
"""

from albert_tf.config import FillMaskConfig, flags
from albert_tf.serving.mask_filler import print_filled

if __name__ == "__main__":
    flags.run(print_filled, FillMaskConfig)
