"""Reads the weights in a Hugging Face folder: safetensors files.

    model.safetensors              all weights; or several files, and
    model.safetensors.index.json   the name of the file that holds each weight

Pickled Python is refused: such a file can run code when it is read.
"""

import posixpath
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors

from albert_tf.errors import UserError, first_line
from albert_tf.io.files import exists, load_json, open_existing

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Other formats of weights.
_REFUSED_FILES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)

# Buffers that old versions of transformers saved next to the weights.
_CONSTANTS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def read_tensors(directory: str) -> dict[str, np.ndarray]:
    """Reads all weights of a folder, local or gs://.

    Returns:
        float32 arrays by the names in the files.

    Raises:
        UserError: If a file is missing or truncated, if a tensor holds
            integers, or if the folder has only formats that can run code.
    """
    index = posixpath.join(directory, INDEX_FILE)
    names = [WEIGHTS_FILE]
    if not exists(posixpath.join(directory, WEIGHTS_FILE)):
        if not exists(index):
            _refuse_other_formats(directory)
        names = _files_of_index(index)
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        tensors |= _read_file(posixpath.join(directory, name))
    return tensors


def _refuse_other_formats(directory: str) -> None:
    found = [
        name
        for name in _REFUSED_FILES
        if exists(posixpath.join(directory, name))
    ]
    if not found:
        raise UserError(
            f"{directory} must hold {WEIGHTS_FILE}", received="none"
        )
    raise UserError(
        f"{directory} must hold {WEIGHTS_FILE}",
        received=f"{', '.join(found)}, which albert_tf does not read, since "
        "such files can run code",
        remedy="If you trust the model, load it with transformers and call "
        "save_pretrained, which writes safetensors.",
    )


def _files_of_index(path: str) -> list[str]:
    """The files that an index names, which must be in its own folder."""
    index = load_json(path)
    file_of_weight = index.get("weight_map") if isinstance(index, dict) else ""
    if not isinstance(file_of_weight, dict) or not file_of_weight:
        raise UserError(f"{path} must have a weight_map")
    names = sorted({str(name) for name in file_of_weight.values()})
    for name in names:
        has_no_path = name == posixpath.basename(name) and "\\" not in name
        if not has_no_path or not name.endswith(".safetensors"):
            raise UserError(
                f"{path} must name .safetensors files in its own folder",
                received=repr(name),
            )
    return names


def _read_file(path: str) -> dict[str, np.ndarray]:
    try:
        with open_existing(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise UserError(f"{path} must exist", received="no such file") from None
    try:
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path} must be a complete safetensors file",
            received=f"{len(content):,} bytes; {first_line(error)}",
            remedy="Copy it again from its source.",
        ) from None
    return {
        name: _to_float32(path, name, tensor)
        for name, tensor in stored
        if not name.endswith(_CONSTANTS)
    }


def _to_float32(path: str, name: str, tensor: Mapping[str, Any]) -> np.ndarray:
    dtype, content = tensor["dtype"], tensor["data"]
    if dtype == "BF16":  # the upper half of a float32
        values = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        values = values.view(np.float32)
    elif dtype in _FLOATS:
        with np.errstate(over="ignore"):  # a large float64 becomes infinite
            values = np.frombuffer(content, _FLOATS[dtype]).astype(np.float32)
    else:
        raise UserError(
            f"{name} in {path} must hold floating-point numbers", received=dtype
        )
    return values.reshape(tensor["shape"])
