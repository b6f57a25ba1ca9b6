import importlib.metadata

import pytest

from albert_tf.config import DistributionConfig
from albert_tf.modeling.target import ProgramTarget

ON_REQUEST = ("recompute_logit_gradients", "float32_score_gradients")
REQUESTED = dict.fromkeys(ON_REQUEST, True)
RECOMPUTED = {
    "recomputes_logit_gradients": True,
    "float32_score_gradients": True,
}


@pytest.mark.parametrize(
    ("device_type", "settings", "expected"),
    [
        ("CPU", {}, {"fuse": True}),
        ("CPU", REQUESTED, {"fuse": True}),
        ("CPU", {"fuse_on_cpu": False}, {}),
        # It drops the same entries as with kernels.
        (
            "CPU",
            {"plain_formulas": True},
            {"fuse": True, "uses_kernels": False},
        ),
        ("GPU", {}, {"jit_compile": True}),
        ("GPU", {"jit_compile": False}, {}),
        ("TPU", dict.fromkeys(ON_REQUEST, False), {}),
        ("TPU", REQUESTED, RECOMPUTED),
        ("TPU", REQUESTED | {"plain_formulas": True}, {"uses_kernels": False}),
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
