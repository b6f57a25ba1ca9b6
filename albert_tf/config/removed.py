"""Flags that earlier versions had, and what to use instead."""

# The end of the sentence "--NAME was removed: ...", one line a flag, sorted.
REMOVED: dict[str, str] = {
    "accelerator": "first_model finds the device",
    "answer_column": "--label_column names the column of answers, too",
    "compare": "the table of a sweep has means and deviations",
    "data_file": "run_finetuning --mode=eval scores a model on --dev_file",
    "data_schedule": "train a second run, with --init_checkpoint of the first",
    "dataset": "name the files of all sets in --input_file",
    "eval_minimal_pairs": "measure checkpoints with albert-tf score",
    "eval_pairs_per_file": "measure checkpoints with albert-tf score",
    "eval_probe": "fit scikit-learn's LogisticRegression on albert_tf.embed",
    "evaluation": "evaluate a run with run_pretraining --mode=eval",
    "fixed_length": "models of --format=litert take texts of any length",
    "fuse_on_cpu": "--jit_compile is for CPUs, too",
    "grams_per_kwh": "codecarbon measures the command (docs/runs.md)",
    "libtpu_init_args": "set the environment variable LIBTPU_INIT_ARGS",
    "licence": "write the licence of the weights into README.md of the folder",
    "max_rollbacks": "a run that diverges ends; start another one from it with "
    "--init_checkpoint",
    "max_texts": "exports are verified on the first hundred lines",
    "model_name": "ask TensorFlow Serving with curl, as docs/serving.md shows",
    "muon_rest": "AdamW updates the weights that Muon does not",
    "near_duplicates": "filter the text before the build, see docs/data.md",
    "num_layers": "set num_hidden_layers in config.json of a copy of the run",
    "num_sentences": "ngram_baselines prints eight sentences",
    "on_divergence": "a run that diverges ends; start another one from it with "
    "--init_checkpoint",
    "parallel_runs": "start several sweeps, each with its own --output_dir",
    "predictions_file": "run_finetuning --mode=eval scores a model on "
    "--dev_file",
    "quality_filter": "filter the text before the build, see docs/data.md",
    "question_column": "--text_pair_column names the column of questions, too",
    "rollback_learning_rate_scale": "start another run with a lower "
    "--learning_rate and --init_checkpoint",
    "server": "ask TensorFlow Serving with curl, as docs/serving.md shows",
    "tags_column": "--label_column names the column of tags, too",
    "temperature": "sentence-transformers trains embeddings, see "
    "docs/finetuning.md",
    "tfds_data_dir": "set the environment variable TFDS_DATA_DIR",
    "tokens_column": "--text_column names the column of words, too",
    "tpu_name": "slices of several hosts train with --runtime=pjrt "
    "--strategy=multi_worker on each host",
    "tracker": "docs/runs.md has the lines for wandb and MLflow",
    "unsupervised": "sentence-transformers trains embeddings, see "
    "docs/finetuning.md",
    "watts_per_device": "codecarbon measures the command (docs/runs.md)",
    "weights": "smaller models are those of --format=litert",
}
