import importlib.metadata

import pytest

from albert_tf.config import DistributionConfig
from albert_tf.modeling.target import ProgramTarget


@pytest.mark.parametrize(
    ("device_type", "settings", "expected"),
    [
        ("CPU", {}, {"fuse": True}),
        ("CPU", {"jit_compile": False}, {}),
        ("GPU", {}, {"jit_compile": True}),
        ("GPU", {"jit_compile": False}, {}),
        ("TPU", {}, {}),
    ],
)
def test_a_setting_changes_programs_for_its_devices_only(
    device_type, settings, expected
):
    config = DistributionConfig(**settings)
    found = ProgramTarget.from_config(config, device_type)
    assert found == ProgramTarget(device_type, **expected)


def test_tensorflow_tpu_does_not_fuse_on_cpus(monkeypatch):
    """Its XLA has no compiler for CPUs."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.20.0")
    assert not ProgramTarget.from_config(DistributionConfig(), "CPU").fuse
