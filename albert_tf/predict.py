r"""Predict with the SavedModel of a model fine-tuned for a task.

    python -m albert_tf.export_saved_model \
      --run_dir=runs/sst2 --export_dir=export/sst2
    python -m albert_tf.predict --saved_model_dir=export/sst2 \
      --text='A film to remember.'

Give --text once per text; --text_pair is the second text of each pair. The
command prints a JSON object for each text: the label and the probability of
each label, or the value of a regression. It needs the SavedModel and
tensorflow-text, but no model code.
"""

from albert_tf.config import PredictConfig, flags
from albert_tf.serving.task_predictor import print_predictions

if __name__ == "__main__":
    flags.run(print_predictions, PredictConfig)
