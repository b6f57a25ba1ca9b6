"""Pretrain ALBERT with TensorFlow, TPU first."""

import os

# Keras reads its backend once, when it is first imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
