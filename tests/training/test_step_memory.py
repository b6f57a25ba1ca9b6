import dataclasses
import mmap

import pytest
import tensorflow as tf

from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ModelConfig,
    PretrainingConfig,
)
from albert_tf.training import step_memory


def settings(precision="mixed_bfloat16", remat=False, parts=1):
    """BERT-base on 512 tokens; 4 rows at a time if `parts` is 4."""
    return PretrainingConfig(
        model=ModelConfig(embedding_size=768, parameter_sharing="none"),
        data=DataConfig(
            global_batch_size=32,
            max_seq_length=512,
            max_predictions_per_seq=20,
            gradient_accumulation_steps=parts,
        ),
        distribution=DistributionConfig(precision=precision, remat=remat),
    )


def test_activation_memory_matches_the_paper():
    """Korthikanti et al.: s b h (34 + 5 a s / h) bytes a layer, in 16 bits.

    s b h = 512 * 4 * 768 = 1,572,864, and 5 a s / h = 5 * 12 * 512 / 768 = 40.
    """
    layer = 1_572_864 * (34 + 40)
    parts = step_memory.estimate_memory(settings(parts=4), num_replicas=2)
    assert parts["activations"] == 12 * layer
    # Logits, their probabilities and their gradient, all in float32.
    assert parts["logits"] == 3 * 4 * (4 * 20 * 30_000)
    assert parts["gradients"] == parts["weights"]
    assert parts["moments"] == 2 * parts["weights"]

    # A packed row has 20 + 8 - 1 slots.
    packed = settings(parts=4)
    data = dataclasses.replace(packed.data, packing="best_fit")
    packed = dataclasses.replace(packed, data=data)
    of_packed = step_memory.estimate_memory(packed, num_replicas=2)
    assert of_packed["logits"] == 3 * 4 * (4 * 27 * 30_000)

    # The input of each layer, and one layer computed a second time.
    recomputed = step_memory.estimate_memory(settings(remat=True, parts=4), 2)
    assert recomputed["activations"] == 12 * 2 * 1_572_864 + layer


def test_memory_saving_settings_lower_the_estimate():
    def needed(**changes):
        return sum(step_memory.estimate_memory(settings(**changes), 2).values())

    assert needed(remat=True) < needed()
    assert needed(parts=4) < needed(parts=2) < needed()
    assert needed() < needed(precision="float32")


on_the_host = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="asks the GPU instead"
)


@on_the_host
@pytest.mark.skipif(
    not step_memory.PROCESS_STATUS.exists(), reason="needs Linux's /proc"
)
def test_peak_memory_rises_and_can_be_reset():
    assert step_memory.reset_peak_memory()
    before = step_memory.peak_memory_bytes()
    # Not an array: the allocator may keep its memory.
    block = mmap.mmap(-1, 2**28)
    for _ in range(2**8):
        block.write(bytes(2**20))
    held = step_memory.peak_memory_bytes()
    assert 250 * 2**20 < held - before < 300 * 2**20

    block.close()
    assert step_memory.peak_memory_bytes() >= held - 2**20
    step_memory.reset_peak_memory()
    assert step_memory.peak_memory_bytes() < held - 200 * 2**20


@on_the_host
def test_peak_memory_is_known_without_proc(monkeypatch, tmp_path):
    expected = step_memory.peak_memory_bytes()
    nothing = tmp_path / "no" / "status"
    monkeypatch.setattr(step_memory, "PROCESS_STATUS", nothing)
    assert not step_memory.reset_peak_memory()
    found = step_memory.peak_memory_bytes()
    assert found == pytest.approx(expected, rel=0.1)


def test_peak_memory_is_that_of_the_accelerator_that_reports_it(monkeypatch):
    """The TPU's, or the GPU's if the TPU does not report it."""
    peaks = {"TPU:0": 7, "GPU:0": 5}
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [kind] * 2
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "get_memory_info",
        lambda device: {"peak": peaks[device]},
    )
    assert step_memory.memory_owner() == "TPU:0"
    assert step_memory.peak_memory_bytes() == 7

    def refuse_tpus(device):
        if device == "TPU:0":
            raise ValueError("not supported")
        return {"peak": peaks[device]}

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", refuse_tpus)
    assert step_memory.memory_owner() == "GPU:0"
    assert step_memory.peak_memory_bytes() == 5


def test_the_peak_of_a_tpu_that_cannot_be_reset_is_left(monkeypatch):
    """TensorFlow raises ValueError for a device without this operation."""
    asked = []

    def refuse(device):
        asked.append(device)
        raise ValueError("Cannot reset the memory statistics")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    for name, function in (
        ("get_memory_info", lambda device: {"peak": 7}),
        ("reset_memory_stats", refuse),
    ):
        monkeypatch.setattr(tf.config.experimental, name, function)
    assert not step_memory.reset_peak_memory()
    assert asked == ["TPU:0"]
    assert step_memory.peak_memory_bytes() == 7


@pytest.mark.parametrize(
    ("answer", "memory"),
    [
        ("echo 81559; echo 40960", 40960 * 2**20),
        ("echo '[N/A]'", None),
        ("exit 9", None),
    ],
)
def test_the_memory_of_gpus_is_that_of_the_smallest(
    monkeypatch, tmp_path, answer, memory
):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(step_memory, "device_type", lambda strategy: "GPU")
    strategy = tf.distribute.get_strategy()
    assert step_memory.device_memory_bytes(strategy) == memory
    program.unlink()
    assert step_memory.device_memory_bytes(strategy) is None
