import pytest
import tensorflow as tf

from albert_tf.errors import UserError, first_line


def test_a_remedy_ends_the_message_and_stands_alone():
    error = UserError("a must be 1", received=2, remedy="Set it.")
    assert str(error) == "a must be 1. Received: 2. Set it."
    assert (error.fault, error.remedy) == (
        "a must be 1. Received: 2.",
        "Set it.",
    )
    assert str(UserError("a must be 1")) == "a must be 1."
    # A library's error is often a ValueError: to catch it keeps ours.
    assert not isinstance(error, ValueError)


def test_the_first_line_of_a_failed_program_is_its_message():
    """Not the location of the program, which TensorFlow prints first."""

    @tf.function
    def program(x):
        return tf.gather([1, 2], x)

    with tf.device("CPU:0"), pytest.raises(tf.errors.OpError) as error:
        program(tf.constant(7))
    assert "Detected at node" in str(error.value)
    assert first_line(error.value) == "indices = 7 is not in [0, 2)"


def test_the_first_line_of_a_rewritten_program_is_its_message():
    """Such a program has no location; seen in TensorFlow 2.21."""
    text = (
        "Graph execution error:\n\nDetected at node a/tmp_var defined at (most "
        "recent call last):\n<stack traces unavailable>\nResource a/tmp_var\n"
        "\t [[{{node a/tmp_var}}]] [Op:__inference_program_1]"
    )
    assert first_line(RuntimeError(text)) == "Resource a/tmp_var"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "OSError"),
        ("\n a \nb", "a"),
        ("Graph execution error:\n\nno", "no"),
        ("a\n\nb", "a"),
    ],
)
def test_the_first_line_is_never_empty(text, line):
    assert first_line(OSError(text)) == line
