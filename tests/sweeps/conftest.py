import dataclasses
import json

import pytest

from albert_tf.config import SweepConfig

MODEL = {
    "vocab_size": 40,
    "embedding_size": 4,
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 32,
}


@pytest.fixture
def base(tmp_path):
    """A function: settings of a sweep of two variants, with changes by name."""
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    (tmp_path / "base.flags").write_text(
        f"--albert_config_file={tmp_path}/model.json\n"
        "--max_seq_length=16\n--max_predictions_per_seq=3\n"
        "--num_train_steps=50\n--num_warmup_steps=5\n"
    )
    config = SweepConfig(
        base_flags=(
            f"--flagfile={tmp_path}/base.flags",
            "--input_file={records_dir}/train/*.tfrecord",
            "--eval_input_file={records_dir}/eval/*.tfrecord",
        ),
        variant=(
            "narrow: --model=embedding_size=2",
            "long: --num_train_steps=70 --num_warmup_steps=7",
        ),
        records_dir=f"{tmp_path}/records",
        output_dir=f"{tmp_path}/sweep",
    )
    return lambda **changes: dataclasses.replace(config, **changes)
