"""Devices are found, or refused before anything is loaded."""

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.devices import device_memory, pick_device


@pytest.mark.parametrize(("name", "message"), [("gpu", "expected auto"), ("cuda:99", "no such")])
def test_a_device_that_is_not_there_is_refused(name, message):
    with pytest.raises(UsageError, match=message):
        pick_device(name)
    assert pick_device("cpu").type == "cpu"


def test_a_cpu_has_no_memory_of_its_own():
    assert device_memory(torch.device("cpu")) is None
