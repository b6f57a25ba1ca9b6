"""Pretrain ALBERT with TensorFlow, TPU first.

The names in `__all__` are the Python interface. Each is imported at its first
use, so that `import albert_tf` does not import TensorFlow.

Example:
    >>> import albert_tf
    >>> config = albert_tf.ModelConfig(hidden_size=128, num_attention_heads=2)
    >>> config.num_hidden_layers
    12
"""

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# Keras reads its backend once, when it is first imported.
if os.environ.setdefault("KERAS_BACKEND", "tensorflow") != "tensorflow":
    raise ImportError(
        "albert_tf needs Keras on TensorFlow. Received: KERAS_BACKEND="
        f"{os.environ['KERAS_BACKEND']}. Unset it."
    )

_MODULES = {
    "albert_tf.config": (
        "DataConfig",
        "DistributionConfig",
        "FinetuningConfig",
        "InitializationConfig",
        "ModelConfig",
        "OptimizerConfig",
        "PretrainingConfig",
        "TrainingConfig",
    ),
    "albert_tf.errors": ("UserError",),
    "albert_tf.interop.formats": ("LoadedModel", "load"),
    "albert_tf.modeling.backbone": ("AlbertBackbone",),
    "albert_tf.modeling.models": ("AlbertPretrainer",),
    "albert_tf.records.tokenization": ("ModelInputs", "Tokenizer", "encode"),
    "albert_tf.library": (
        "TrainingResult",
        "embed",
        "fill_mask",
        "recipe",
        "train",
    ),
}
_WITHOUT_TENSORFLOW = (
    "albert_tf.config",
    "albert_tf.errors",
    "albert_tf.records.tokenization",
)
_MODULE_OF = {
    name: module for module, names in _MODULES.items() for name in names
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'albert_tf' has no attribute {name!r}")
    from albert_tf.cluster import versions

    versions.import_triton()  # the caller may import transformers later
    if _MODULE_OF[name] not in _WITHOUT_TENSORFLOW:
        versions.import_tensorflow()  # without its lines about this machine
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
