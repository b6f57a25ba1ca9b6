"""StyleTTS2 loads the folder that docs/voices.md writes."""

import pathlib
import re

import numpy as np
import pytest

from albert_tf.config import ModelConfig
from albert_tf.interop import hugging_face
from albert_tf.records.features import CLS_ID, MASK_ID, UNK_ID
from albert_tf.records.tokenization import Tokenizer, make_symbols
from tests.helpers import tiny_albert

pytestmark = pytest.mark.interop

ROOT = pathlib.Path(__file__).parents[2]
SYMBOLS = ROOT / "configs/models/pl_bert_symbols.txt"
MODEL = ModelConfig(
    vocab_size=182,
    embedding_size=4,
    hidden_size=6,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=10,
    max_position_embeddings=40,
)


def load_as_styletts2(directory):
    """The `AlbertModel` of a folder, by the steps of StyleTTS2's loader."""
    import torch
    import yaml
    from transformers import AlbertConfig, AlbertModel

    params = yaml.safe_load((directory / "config.yml").read_text())
    model = AlbertModel(AlbertConfig(**params["model_params"]))
    (checkpoint,) = directory.glob("step_*.t7")
    stored = torch.load(checkpoint, map_location="cpu")["net"]
    prefix = "module.encoder."
    state = {name.removeprefix(prefix): v for name, v in stored.items()}
    assert all(name.startswith(prefix) for name in stored)
    del state["embeddings.position_ids"]
    loaded = model.load_state_dict(state, strict=False)
    assert not loaded.unexpected_keys
    assert all("pooler" in name for name in loaded.missing_keys)
    return model.eval()


def test_styletts2_computes_our_hidden_states(tmp_path, monkeypatch):
    import torch

    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    symbols = SYMBOLS.read_text("utf-8").rstrip("\n")
    assert len(symbols) == 178
    vocabulary = tmp_path / "symbols.model"
    vocabulary.write_bytes(make_symbols(symbols))
    weights = tiny_albert.random_weights(
        MODEL, "none", vocabulary=str(vocabulary)
    )
    hugging_face.write(weights, str(tmp_path / "build/voice"))
    page = (ROOT / "docs/voices.md").read_text("utf-8")
    _, export = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(export, {})

    # The last number of a repeated symbol, as StyleTTS2's table has it.
    table = {symbol: number for number, symbol in enumerate(symbols)}
    text = "ðə kwˈɪk, n̩ 'fˈɑːks'?"  # noqa: RUF001
    ids = Tokenizer(str(vocabulary)).encode_batch([text]).ids.tolist()
    ours = [CLS_ID, *ids, MASK_ID, UNK_ID, CLS_ID]
    theirs = [0, *map(table.get, text), table["M"], table["U"], 0]
    row = np.array([ours], np.int32)
    expected = tiny_albert.outputs_of(
        weights,
        {
            "input_ids": row,
            "input_mask": np.ones_like(row),
            "segment_ids": np.zeros_like(row),
            "masked_lm_positions": np.zeros((1, 1), np.int32),
        },
    )["sequence_output"]
    model = load_as_styletts2(tmp_path / "build/plbert")
    with torch.no_grad():
        found = model(torch.tensor([theirs])).last_hidden_state.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
