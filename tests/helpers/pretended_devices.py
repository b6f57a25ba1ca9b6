"""CPUs that programs take for GPUs or TPUs."""

import dataclasses

from albert_tf.cluster.runtime import TensorFlowRuntime


def pretend(monkeypatch, device_type):
    """Makes TensorFlow's runtime report another type of its devices."""
    describe = TensorFlowRuntime.cluster.func

    def cluster(runtime):
        return dataclasses.replace(describe(runtime), device_type=device_type)

    monkeypatch.setattr(TensorFlowRuntime, "cluster", property(cluster))
