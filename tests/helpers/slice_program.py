"""The processes of a TPU slice whose cores are CPUs.

    python -m tests.helpers.slice_program serve INDEX HOST:PORT...
    python -m tests.helpers.slice_program train FLAG...

As on a real slice, each host runs a gRPC server of TensorFlow, and one program
trains with `TPUStrategy` through all servers. A TPU core is a CPU device of a
server. The parts that need a TPU are replaced: the start of the TPU system,
the query of its devices, and `tpu.replicate`, which would compile the step. The
step runs as under `MirroredStrategy` instead, with the model, the gradients
and the update of the trainer.
"""

import sys

CORES_PER_HOST = 1

# A loop counts as hung after this time, not after five minutes.
HANG_S = 10.0


def serve(index: int, addresses: list[str]) -> None:
    """Runs the server of a host, as `start_grpc_tpu_worker` does."""
    import tensorflow as tf

    # CPU:0 is the host, the others are its cores.
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 1 + CORES_PER_HOST})
    tf.distribute.Server(
        tf.train.ClusterSpec({"worker": addresses}),
        job_name="worker",
        task_index=index,
        config=config,
    ).join()


def replace_tpu_system() -> None:
    """Lets `TPUStrategy` take CPUs of the servers for cores of TPUs."""
    import types

    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_run, tpu_strategy

    from tests.helpers.tpu_bridge import DeviceName

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver

    def metadata(self):
        num_hosts = len(self.cluster_spec().as_dict()["worker"])
        cores = [
            types.SimpleNamespace(
                name=DeviceName(
                    f"/job:worker/replica:0/task:{host}/device:CPU:{1 + core}"
                )
            )
            for host in range(num_hosts)
            for core in range(CORES_PER_HOST)
        ]
        return tf.tpu.experimental.TPUSystemMetadata(
            len(cores), num_hosts, CORES_PER_HOST, None, cores
        )

    def tpu_run(self, function, args, kwargs, options=None):
        return mirrored_run.call_for_each_replica(
            self._container_strategy(), function, args, kwargs
        )

    resolver.get_tpu_system_metadata = metadata
    tf.tpu.experimental.initialize_tpu_system = lambda resolver: None
    extended = tpu_strategy.TPUExtended
    extended.tpu_run = tpu_run
    extended._get_replica_id_in_sync_group = lambda self, replica: replica
    # Packed variables have gradients inside of `tpu.replicate` only.
    tf.distribute.TPUStrategy._enable_packed_variable_in_eager_mode = property(
        lambda self: False, lambda self, value: None
    )


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "serve":
        serve(int(arguments[0]), arguments[1:])
        return
    from albert_tf import run_pretraining
    from albert_tf.cluster import versions, watchdog
    from albert_tf.config import PretrainingConfig, flags

    with versions.quick_import():
        import tensorflow as tf
    replace_tpu_system()
    # Graph optimization takes longer than the few steps of a test.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    watchdog.SHORTEST_LIMIT_S = HANG_S
    sys.argv[1:] = arguments
    flags.run(run_pretraining.main, PretrainingConfig)


if __name__ == "__main__":
    main()
