"""Files, local and on gs://, and TFRecord files."""
