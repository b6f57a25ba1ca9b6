import pathlib

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)


def test_the_batching_config_has_the_fields_of_tensorflow_serving():
    """`BatchingParameters` of its session_bundle_config.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="check",
        dependency=["google/protobuf/wrappers.proto"],
    )
    message = file.message_type.add(name="BatchingParameters")
    int64 = ".google.protobuf.Int64Value"
    for number, name in enumerate(
        [
            "max_batch_size",
            "batch_timeout_micros",
            "max_enqueued_batches",
            "num_batch_threads",
        ],
        start=1,
    ):
        message.field.add(
            name=name, number=number, type=11, label=1, type_name=int64
        )
    message.field.add(
        name="pad_variable_length_inputs", number=7, type=8, label=1
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    parameters = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("check.BatchingParameters")
    )()
    text = pathlib.Path("albert_tf/serving/batching.config").read_text()
    text_format.Parse(text, parameters)
    assert parameters.max_batch_size.value == 32
    assert not parameters.pad_variable_length_inputs
