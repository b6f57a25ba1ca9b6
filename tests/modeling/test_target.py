import importlib.metadata

import pytest

from albert_tf.config import DistributionConfig
from albert_tf.modeling.target import ProgramTarget


@pytest.mark.parametrize(
    ("settings", "device_type", "fuses", "compiles"),
    [
        ({}, "CPU", True, False),
        ({}, "TPU", False, False),
        ({}, "GPU", False, True),
        ({"fuse_on_cpu": False}, "CPU", False, False),
        ({"jit_compile": False}, "GPU", False, False),
    ],
)
def test_cpus_fuse_and_gpus_compile_unless_a_setting_forbids_it(
    settings, device_type, fuses, compiles
):
    config = DistributionConfig(**settings)
    target = ProgramTarget.from_config(config, device_type)
    assert target.device_type == device_type
    assert (target.fuse, target.jit_compile) == (fuses, compiles)
    assert target.uses_kernels


@pytest.mark.parametrize(
    ("setting", "attribute"),
    [
        ("recompute_logit_gradients", "recomputes_logit_gradients"),
        ("float32_score_gradients", "float32_score_gradients"),
    ],
)
@pytest.mark.parametrize(
    ("requested", "plain_formulas", "device_type", "expected"),
    [
        (True, False, "TPU", True),
        (True, True, "TPU", False),
        (True, False, "CPU", False),
        (False, False, "TPU", False),
    ],
)
def test_only_kernels_for_tpus_vary_their_gradients_and_only_on_request(
    setting, attribute, requested, plain_formulas, device_type, expected
):
    config = DistributionConfig(
        **{setting: requested}, plain_formulas=plain_formulas
    )
    target = ProgramTarget.from_config(config, device_type)
    assert getattr(target, attribute) == expected


def test_plain_formulas_use_no_kernel_and_keep_the_masks():
    config = DistributionConfig(plain_formulas=True)
    target = ProgramTarget.from_config(config, "CPU")
    assert not target.uses_kernels
    assert target.computes_masks


def test_tensorflow_tpu_does_not_fuse_on_cpus(monkeypatch):
    """Its XLA has no compiler for CPUs."""
    config = DistributionConfig(fuse_on_cpu=True)
    assert ProgramTarget.from_config(config, "CPU").fuse
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.20.0")
    assert not ProgramTarget.from_config(config, "CPU").fuse
