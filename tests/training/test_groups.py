"""One process among several, by stand-ins: who votes, who waits, who writes."""

from __future__ import annotations

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training import distributed
from lowtide.training.distributed import (
    ProcessGroup,
    gradient_sync,
    open_process_group,
    shard_like,
    whole_tensors,
    wrap_model,
)

CPU = torch.device("cpu")


class FakeDist:
    """Stands for torch.distributed: the other process has the same value."""

    def __init__(self, *, initialized=False):
        self.calls, self.initialized = [], initialized

    ReduceOp = torch.distributed.ReduceOp

    def all_reduce(self, value, op=None):
        self.calls.append("all_reduce")
        if op == self.ReduceOp.MIN:
            value.clamp_(max=5)  # the other has 5
        else:
            value += value.clone()

    def broadcast_object_list(self, box, src):
        self.calls.append(("broadcast", src))
        box[0] = "the first's"

    def all_gather_object(self, said, value):
        self.calls.append("all_gather")
        said[:] = [value, "the other's"]

    def barrier(self):
        self.calls.append("barrier")

    def is_initialized(self):
        return self.initialized

    def init_process_group(self, backend):
        self.calls.append(backend)

    def destroy_process_group(self):
        self.calls.append("destroyed")

    def get_rank(self):
        return 1


@pytest.fixture
def dist(monkeypatch):
    fake = FakeDist()
    monkeypatch.setattr(distributed, "dist", fake)
    return fake


def test_alone_nothing_is_asked(dist):
    group = ProcessGroup(0, 1, CPU)
    value = torch.tensor(3.0)
    assert group.is_first and group.mean(value) is value
    assert group.any(True) is True and group.any(False) is False
    assert group.first_says("mine") == "mine" and group.all_say("mine") == ["mine"]
    group.wait()
    assert dist.calls == []


def test_among_others_everything_is_asked(dist):
    group = ProcessGroup(1, 2, CPU)
    value = torch.tensor(3.0)
    assert not group.is_first
    assert group.mean(value).item() == 3.0 and value.item() == 3.0
    assert group.any(True) is True and group.any(False) is False
    assert (group.least(8), group.least(3)) == (5, 3)
    assert group.first_says("mine") == "the first's"
    assert group.all_say("mine") == ["mine", "the other's"]
    group.wait()
    assert dist.calls == ["all_reduce"] * 5 + [("broadcast", 0), "all_gather", "barrier"]


@pytest.mark.parametrize("initialized", [False, True])
def test_a_group_is_joined_and_left_unless_it_was_there(dist, monkeypatch, initialized):
    dist.initialized = initialized
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with open_process_group("cpu") as group:
        assert (group.rank, group.world_size, group.device) == (1, 2, CPU)
    assert dist.calls == ([] if initialized else ["gloo", "destroyed"])
    monkeypatch.delenv("WORLD_SIZE")
    with open_process_group("cpu") as alone:
        assert (alone.rank, alone.world_size) == (0, 1)
    assert len(dist.calls) == (0 if initialized else 2)


def test_processes_of_jax_are_none_of_torch(dist, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(UsageError, match="JAX_NUM_PROCESSES is 2, and --backend is torch"):
        open_process_group("cpu").__enter__()
    assert dist.calls == []


def test_a_group_is_left_after_an_error_too(dist, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConnectionError), open_process_group("cpu"):
        raise ConnectionError
    assert dist.calls == ["gloo", "destroyed"]


def test_networks_are_wrapped_only_where_there_are_others(monkeypatch):
    model = GPT(GPTConfig(10, 8, 1, 8, 1))
    assert wrap_model(model, ProcessGroup(0, 1, CPU), parallel="ddp") is model
    with pytest.raises(UsageError, match="parallel is 'other', expected ddp or fsdp"):
        wrap_model(model, ProcessGroup(0, 2, CPU), parallel="other")
    made = {}
    monkeypatch.setattr(
        distributed,
        "DistributedDataParallel",
        lambda model, **options: made.update(options) or "wrapped",
    )
    assert wrap_model(model, ProcessGroup(0, 2, CPU), parallel="ddp") == "wrapped"
    assert made == {"device_ids": None, "gradient_as_bucket_view": True}
    gpu = torch.device("cuda", 1)
    wrap_model(model, ProcessGroup(0, 2, gpu), parallel="ddp")
    assert made["device_ids"] == [gpu]


def test_gradients_are_added_up_in_the_last_part_only():
    asked = []

    class Divided(torch.nn.Module):
        def set_requires_gradient_sync(self, wanted):
            asked.append(wanted)

    for wanted in (False, True):
        with gradient_sync(Divided(), wanted=wanted):
            pass
    assert asked == [False, True]
    with gradient_sync(torch.nn.Linear(1, 1), wanted=True):
        pass


def test_whole_tensors_stay_what_they_are():
    tensor = torch.ones(2)
    value = {"a": [tensor, 5], "b": {"c": tensor}}
    found = whole_tensors(value)
    assert found == value and found["a"][0] is tensor and found["b"]["c"] is tensor
    assert shard_like(tensor, torch.zeros(2)) is tensor
