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


@pytest.mark.parametrize("name", ["tpu", "xla", "xla:1", "hpu", "meta"])
def test_what_torch_knows_and_cannot_train_on_here_is_refused(name):
    with pytest.raises(UsageError, match="expected auto, cpu") as caught:
        pick_device(name)
    assert "--backend jax --device tpu" in str(caught.value.next_step)


def test_a_cpu_has_no_memory_of_its_own():
    assert device_memory(torch.device("cpu")) is None


def test_auto_takes_the_fastest_that_is_there(monkeypatch):
    there = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there["mps"])
    found = [pick_device("auto").type]
    for name in there:
        there[name] = False
        found.append(pick_device("auto").type)
    assert found == ["cuda", "mps", "cpu"]
