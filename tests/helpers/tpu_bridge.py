"""TensorFlow's TPU bridge without a TPU: from a traced step to HLO.

`tf.function`s that run under `TPUStrategy` reach a TPU through TensorFlow's TPU
bridge, a sequence of MLIR passes. The bridge is part of every wheel of
TensorFlow. It needs no TPU, so tests can pass the programs of the trainer
through it. Not included is what follows on a host of a TPU: the runtime's own
operations, and libtpu.

The names of the passes and of the attributes are private to TensorFlow.
"""

import dataclasses
import re
import string
import types

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from albert_tf.cluster.host import Host
from albert_tf.cluster.runtime import runtime_of
from albert_tf.cluster.versions import installed_tensorflows
from albert_tf.training import schedules, train_step
from albert_tf.training.evaluate import Evaluator
from tests.helpers.pretended_devices import pretend

BRIDGE = "tf-replicated-clustering-bridge-v2"
# Only the wheel tensorflow-tpu has the kernels for TPUs; see `make
# tpu-wheel-test`.
DEVICE = "TPU" if "tensorflow-tpu" in installed_tensorflows() else "CPU"
LEGALIZE = (
    "tf-standard-pipeline,"
    f"xla-legalize-tf{{use-tf2xla-fallback=true device-type=XLA_{DEVICE}_JIT}}"
)


class DeviceName(str):
    """A name of a CPU that passes `TPUStrategy`'s search for TPUs."""

    def __contains__(self, part):
        return part == "device:TPU:" or super().__contains__(part)


class _Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """A TPU system whose cores are logical CPUs; CPU 0 is the host."""

    def __init__(self, num_replicas):
        super().__init__("local")
        cpus = tf.config.list_logical_devices("CPU")
        self._cores = tuple(
            types.SimpleNamespace(
                name=DeviceName(f"/job:localhost/replica:0/task:0{cpu.name}")
            )
            for cpu in cpus[1 : 1 + num_replicas]
        )

    def get_tpu_system_metadata(self):
        number = len(self._cores)
        return tf.tpu.experimental.TPUSystemMetadata(
            number, 1, number, None, self._cores
        )


def make_tpu_strategy(monkeypatch, num_replicas=2):
    """A `TPUStrategy` that traces programs; it cannot run them.

    Its runtime takes the devices for TPUs.
    """
    pretend(monkeypatch, "TPU")
    return tf.distribute.TPUStrategy(_Resolver(num_replicas))


@dataclasses.dataclass(frozen=True)
class DeviceProgram:
    """The program of one core.

    Attributes:
        tensorflow: The program before it is lowered to HLO, as MLIR.
        hlo: The lowered program, as MLIR.
        host: The traced function, which the host runs.
    """

    tensorflow: str
    hlo: str
    host: tf.compat.v1.GraphDef

    @property
    def tensorflow_operations(self):
        """Operations that were not lowered to HLO."""
        return re.findall(r'"?\btf(?:_device|_executor)?\.\w+"?\(', self.hlo)

    @property
    def dynamic_shapes(self):
        """Types of tensors without a static shape."""
        return re.findall(
            r"tensor<(?:[^<>]*\?[^<>]*|\*[^<>]*)>", self.tensorflow
        )

    @property
    def num_updated_variables(self):
        """Variables that the program updates in place."""
        return self.hlo.count("tf.aliasing_output")

    @property
    def num_sums_over_replicas(self):
        return self.hlo.count('"mhlo.cross-replica-sum"(')


def lower(function, variables=()):
    """Passes a traced function through the TPU bridge.

    Args:
        function: A concrete function that calls `TPUStrategy.run` once.
        variables: The variables that the function reads or updates.

    Returns:
        The program that each core runs.

    Raises:
        Exception: If an operation cannot run on a TPU, or not be lowered.
    """
    module = _to_mlir(function, variables)
    module = tf.mlir.experimental.run_pass_pipeline(module, BRIDGE)
    program = _device_program(module)
    return DeviceProgram(
        program,
        tf.mlir.experimental.run_pass_pipeline(program, LEGALIZE),
        function.graph.as_graph_def(),
    )


def lower_training(strategy, config, objective, features):
    """The step of a run, as the program of a core, and its state."""
    with strategy.scope():
        state = train_step.make_state(config, objective)
    rates = schedules.dropout_rates(0, config)
    step = train_step.make_replica_step(state, config, rates, "TPU")
    names = train_step.metric_names(config, objective)
    function = (
        runtime_of(strategy)
        .loop(step)
        .get_concrete_function(
            _batches_of_zeros(strategy, config, features),
            tf.TensorSpec([len(names)], tf.float32),
            tf.TensorSpec([], tf.int32),
        )
    )
    return lower(function, list(state.variables().values())), state


def lower_evaluation(strategy, config, objective, model, features):
    """The evaluation of a batch, as the program of a core."""
    evaluator = Evaluator(
        Host(strategy), model, objective, objective.find_held_out(), config
    )
    function = evaluator._evaluate_batch.get_concrete_function(
        next(_batches_of_zeros(strategy, config, features))
    )
    return lower(function, model.variables)


def _batches_of_zeros(strategy, config, features):
    """A distributed iterator over batches as the trainer reads them."""
    size = config.data.global_batch_size // strategy.num_replicas_in_sync
    batch = {
        feature.name: np.zeros(
            [size, feature.length(config.data)],
            np.int32 if feature.dtype == "int64" else np.float32,
        )
        for feature in features
    }
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return iter(
        strategy.distribute_datasets_from_function(lambda context: dataset)
    )


def assert_host_runs_ahead(program, num_replicas):
    """Checks that the host launches a step before the last one has ended.

    The request of a batch may wait for results of earlier steps only. In each
    step, the host sends nothing but the batch and the number of the replica: a
    slice may have 256 replicas.
    """
    (body,) = (
        function
        for function in program.host.library.function
        if any(node.op == "TPUReplicatedOutput" for node in function.node_def)
    )
    nodes = {node.name: node for node in body.node_def}

    def needed(name, prefixes):
        """The nodes and arguments that a tensor or node depends on."""
        found, open_names = set(), [name]
        while open_names:
            one = open_names.pop().partition(":")[0].lstrip("^")
            if one not in found:
                found.add(one)
                inputs = nodes[one].input if one in nodes else ()
                open_names += [i for i in inputs if i.startswith(prefixes)]
        return found

    # Output n of the loop's body is argument n of the next step.
    next_values = dict(
        zip(
            [argument.name for argument in body.signature.input_arg],
            [body.ret[output.name] for output in body.signature.output_arg],
            strict=False,
        )
    )
    requests = [n.name for n in body.node_def if n.op == "IteratorGetNext"]
    (output,) = (n for n in body.node_def if n.op == "TPUReplicatedOutput")
    readers = {
        node.name
        for node in body.node_def
        if node.op not in ("TPUReplicatedOutput", "Identity")
        and output.name in needed(node.name, tuple(string.ascii_letters))
    }
    assert requests
    for request in requests:
        waits_for = needed(request, ("",)) & set(next_values)
        assert waits_for, "the loop ends without another batch"
        for argument in waits_for:
            values = needed(next_values[argument], tuple(string.ascii_letters))
            assert request not in values, argument
            # An operation that has been launched on a TPU counts as done for
            # control inputs; one that reads its results on the host does not.
            assert not needed(next_values[argument], ("",)) & readers, argument
    assert len(requests) == num_replicas
    others = [
        node.name
        for node in body.node_def
        if node.op == "TPUReplicatedInput"
        and node.attr["T"].type != tf.resource.as_datatype_enum
        and not needed(node.name, tuple(string.ascii_letters)) & {*requests}
    ]
    assert len(others) == 1, f"more than the replica's number: {others}"


def assert_runs_on_tpu(program):
    """Each operation is lowered, and each shape is static."""
    assert program.tensorflow_operations == []
    assert program.dynamic_shapes == []


def _to_mlir(function, variables):
    """The function as MLIR, with the shapes of its variables.

    The runtime knows the shapes behind resource handles; a traced function
    does not.
    """
    definition = type(function.function_def)()
    definition.CopyFrom(function.function_def)
    definition.signature.name = "host_program"
    by_handle = {}
    for variable in variables:
        # Keras' variables hold one of `TPUStrategy`.
        variable = getattr(variable, "_value", variable)
        by_handle[id(variable._packed_var.packed_handle)] = variable
    captured = function.captured_inputs
    first = len(function.inputs) - len(captured)
    for number, handle in enumerate(captured, first):
        variable = by_handle.get(id(handle))
        if variable is not None:
            attributes = definition.arg_attr[number].attr
            attributes["_handle_dtypes"].list.type.append(
                variable.dtype.as_datatype_enum
            )
            attributes["_handle_shapes"].list.shape.append(
                variable.shape.as_proto()
            )
    # `convert_function` takes the definition from the context.
    context.context().add_function_def(definition)
    try:
        return tf.mlir.experimental.convert_function(
            types.SimpleNamespace(function_def=definition), pass_pipeline=""
        )
    finally:
        context.context().remove_function(definition.signature.name)


def _device_program(module):
    """The function that the bridge made for the device, as a module."""
    versions = re.search(r"^module attributes (\{.*\}) \{$", module, re.M)[1]
    functions = {
        re.match(r"  func\.func (?:private )?@([\w.\-]+)", text)[1]: text
        for text in re.split(r"^(?=  func\.func )", module.rstrip(), flags=re.M)
        if text.startswith("  func.func ")
    }
    names = [re.search(r"tf_device\.cluster_func.*func = @(\w+)", module)[1]]
    for name in names:  # the loop adds to it
        called = re.findall(r"@([\w.\-]+)", functions[name])
        names += [n for n in called if n in functions and n not in names]
    # The last function of the module ends with the brace of the module.
    texts = [re.sub(r"\n  \}\n\}$", "\n  }\n", functions[n]) for n in names]
    texts[0] = re.sub(r"func\.func private @\w+", "func.func @main", texts[0])
    return f"module attributes {versions} {{\n{''.join(texts)}}}\n"
