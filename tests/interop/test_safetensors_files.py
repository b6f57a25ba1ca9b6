"""Files of tensors are read only if they are complete and cannot run code."""

import json

import pytest

from albert_tf.errors import UserError
from albert_tf.interop import hugging_face
from albert_tf.interop.safetensors_files import INDEX_FILE, WEIGHTS_FILE
from tests.helpers.hugging_face_folder import (
    assert_equal,
    assert_state,
    transformers_model,
)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(folder, kept):
    path = folder[0] / WEIGHTS_FILE
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    with pytest.raises(
        UserError,
        match=f"must be a complete safetensors .*: {len(content):,} byte",
    ):
        hugging_face.read(str(folder[0]))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"]
)
def test_formats_that_can_run_code_are_refused(folder, name):
    directory, _ = folder
    (directory / WEIGHTS_FILE).rename(directory / name)
    with pytest.raises(UserError, match=f"Received: {name}.* can run code"):
        hugging_face.read(str(directory))
    (directory / name).unlink()
    with pytest.raises(UserError, match=r"model.safetensors. Received: none"):
        hugging_face.read(str(directory))


@pytest.mark.parametrize(
    "name",
    [
        "../folder/model-1.safetensors",
        "/etc/passwd.safetensors",
        "sub/model-1.safetensors",
        "..\\model-1.safetensors",
        "model-1.bin",
        None,
    ],
)
def test_an_index_names_only_files_in_its_folder(folder, name):
    directory, weights = folder
    (directory / WEIGHTS_FILE).rename(directory / "model-1.safetensors")
    index = directory / INDEX_FILE
    index.write_text('{"weight_map": {"any": "model-1.safetensors"}}')
    assert_equal(hugging_face.read(str(directory)), weights)
    index.write_text(json.dumps({"weight_map": {"any": name}}))
    with pytest.raises(UserError, match=r"\.safetensors files in its own"):
        hugging_face.read(str(directory))
    index.write_text('{"weight_map": {"any": "model-2.safetensors"}}')
    with pytest.raises(UserError, match=r"model-2.* must exist"):
        hugging_face.read(str(directory))
    index.write_text("[]")
    with pytest.raises(UserError, match="weight_map"):
        hugging_face.read(str(directory))


@pytest.mark.interop
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_shards_of_half_precision_are_read(tmp_path, dtype):
    import torch

    model = transformers_model("AlbertForPreTraining")
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert not (tmp_path / WEIGHTS_FILE).exists()
    weights = hugging_face.read(str(tmp_path))
    assert_state(weights, model.state_dict())
