"""Flags that earlier versions had, and what to use instead."""

# The end of the sentence "--NAME was removed: ...", one line a flag, sorted.
REMOVED: dict[str, str] = {
    "data_file": "run_finetuning --mode=eval scores a model on --dev_file",
    "model_name": "ask TensorFlow Serving with curl, as docs/serving.md shows",
    "predictions_file": "run_finetuning --mode=eval scores a model on "
    "--dev_file",
    "server": "ask TensorFlow Serving with curl, as docs/serving.md shows",
}
