"""Functions in processes of their own, which may crash."""

import os

import pytest

from tpu.own_process import NoResultError, run_apart

pytestmark = pytest.mark.slow


def test_the_environment_is_set_in_the_process_only():
    environment = {"TPU_FLAGS_OF_A_TEST": "--a=1 --b=2"}
    (name,) = environment
    assert run_apart(os.getenv, name, environment=environment) == "--a=1 --b=2"
    assert name not in os.environ


def test_exceptions_are_those_of_the_function():
    with pytest.raises(ValueError, match="invalid literal"):
        run_apart(int, "many")


def test_a_crash_is_not_the_end_of_the_caller():
    with pytest.raises(NoResultError, match="it has crashed"):
        run_apart(os.abort)
