"""Saving beside training: from a copy, in order, errors not lost, memory used again."""

import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lowtide.errors import BudgetError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.training import checkpoints, hostcopies
from lowtide.training.checkpoints import Checkpoint, RunFolder
from lowtide.training.hostcopies import HostCopy
from lowtide.training.saving import CheckpointSaver

CONFIG = GPTConfig(10, 8, 1, 8, 1)


def as_they_are(weights, config):
    return dict(weights)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run", keep=2)
    folder.create()
    return folder


def test_writing_in_the_background_takes_a_copy(run, monkeypatch):
    weights = {"a": torch.zeros(3)}
    go_on = threading.Event()
    save = run.save

    def slow(*arguments):
        assert go_on.wait(100)
        return save(*arguments)

    monkeypatch.setattr(run, "save", slow)
    with CheckpointSaver(run, background=True, rename=as_they_are, snapshot=HostCopy) as saver:
        saver.save(Checkpoint(1, weights, {}, {}), CONFIG, wait=False)
        weights["a"] += 1  # training goes on meanwhile
        go_on.set()
    assert load_file(run.root / "model.safetensors")["a"].tolist() == [0.0, 0.0, 0.0]


def test_an_error_in_the_background_is_raised(run, monkeypatch):
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: 10)
    with (
        pytest.raises(BudgetError),
        CheckpointSaver(run, background=True, rename=as_they_are, snapshot=HostCopy) as saver,
    ):
        saver.save(Checkpoint(1, {"a": torch.zeros(3)}, {}, {}), CONFIG, wait=False)


@pytest.mark.parametrize("background", [False, True])
def test_weights_are_written_under_portable_names(run, background):
    model = GPT(CONFIG)
    with CheckpointSaver(
        run, background=background, rename=portable_tensors, snapshot=HostCopy
    ) as saver:
        saver.save_best(dict(model.state_dict()), CONFIG, {"step": 3})
        saver.save(Checkpoint(3, dict(model.state_dict()), {}, {}), CONFIG, wait=True)
        for folder in (run.root, run.best_dir):
            found = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
            assert torch.equal(found, model.embedding.weight)


def test_a_copy_has_the_structure_and_its_memory_is_used_again():
    copies = HostCopy()
    value = {
        "a": [torch.arange(5), (torch.ones(3, dtype=torch.bfloat16), "text")],
        "b": torch.empty(0),
        "c": torch.tensor(2.5),
    }
    copy, is_there = copies.take(value)
    is_there()
    assert copy["a"][0].tolist() == [0, 1, 2, 3, 4]
    assert copy["a"][1][0].dtype == torch.bfloat16
    assert copy["a"][1][1] == "text"
    assert (copy["b"].numel(), copy["c"].item()) == (0, 2.5)
    assert copy["a"][0].untyped_storage().nbytes() == 40
    again, _ = copies.take({"c": torch.tensor(7.5)})
    assert again["c"].item() == 7.5
    assert again["c"].data_ptr() == copy["a"][0].data_ptr()
    copies.close()


def test_the_next_copy_waits_until_the_last_one_is_written(run, monkeypatch):
    written, started, go_on = [], threading.Event(), threading.Event()

    def slow(checkpoint, config):
        started.set()
        assert go_on.wait(100)
        written.append(checkpoint.weights["a"].tolist())

    monkeypatch.setattr(run, "save", slow)
    with CheckpointSaver(run, background=True, rename=as_they_are, snapshot=HostCopy) as saver:
        saver.save(Checkpoint(1, {"a": torch.zeros(2)}, {}, {}), CONFIG, wait=False)
        assert started.wait(100)
        second = threading.Thread(
            target=saver.save,
            args=(Checkpoint(2, {"a": torch.ones(2)}, {}, {}), CONFIG),
            kwargs={"wait": True},
        )
        second.start()
        assert written == []  # the copy is in use: nothing has overwritten it
        go_on.set()
        second.join(100)
        assert saver._pool._max_workers == 1  # one at a time, in order
        copies = list(saver._copies.values())
    assert written == [[0.0, 0.0], [1.0, 1.0]]
    assert all(copy._memory.size == 0 for copy in copies)


def test_memory_of_a_copy_grows_only_when_it_must():
    copies = HostCopy()
    assert copies._memory.size == 0 and copies._locked is False
    first, _ = copies.take([torch.arange(8), torch.arange(9)])
    assert copies._memory.size == 64 + 128  # each begins at a multiple of 64
    assert first[0].data_ptr() == copies._memory.ctypes.data
    assert first[1].data_ptr() - first[0].data_ptr() == 64
    memory = copies._memory
    copies.take([torch.arange(8), torch.arange(9)])
    assert copies._memory is memory
    copies.take([torch.arange(80)])
    assert copies._memory is not memory and copies._memory.size == 640


class FakeRuntime:
    """The calls of CUDA's runtime that lock pages, noted."""

    def __init__(self, answer=0):
        self.calls, self.answer = [], answer

    def cudaHostRegister(self, place, size, flags):  # noqa: N802
        self.calls.append(("lock", place, size, flags))
        return self.answer

    def cudaHostUnregister(self, place):  # noqa: N802
        self.calls.append(("unlock", place))


@pytest.mark.parametrize("answer", [0, 2])
def test_memory_for_a_gpu_is_locked_and_unlocked_where_the_system_allows_it(monkeypatch, answer):
    runtime = FakeRuntime(answer)
    monkeypatch.setattr(hostcopies, "_cuda_runtime", lambda: runtime)
    copies = HostCopy()
    copies._memory = np.zeros(128, np.uint8)
    copies._locked = hostcopies.lock_pages(copies._memory)
    place = copies._memory.ctypes.data
    assert copies._locked is (answer == 0)
    copies.close()
    assert copies._locked is False
    unlocked = [("unlock", place)] if answer == 0 else []
    assert runtime.calls == [("lock", place, 128, 0), *unlocked]
    copies.close()  # nothing is unlocked twice
    assert len(runtime.calls) == 1 + len(unlocked)


class OnGPU(torch.Tensor):
    """A tensor of this machine that says it is on a GPU."""

    is_cuda = True


def test_a_copy_from_a_gpu_is_there_when_its_event_is(monkeypatch):
    noted = []

    class Event:
        def record(self):
            noted.append("record")

        def synchronize(self):
            noted.append("synchronize")

    runtime = FakeRuntime(0)
    monkeypatch.setattr(hostcopies, "_cuda_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    copies = HostCopy()
    value = {"a": torch.arange(3).as_subclass(OnGPU), "b": [torch.zeros(0), 7]}
    copy, wait = copies.take(value)
    assert copy["a"].tolist() == [0, 1, 2] and copy["b"][0].numel() == 0 and copy["b"][1] == 7
    assert noted == ["record"] and [call[0] for call in runtime.calls] == ["lock"]
    wait()
    assert noted == ["record", "synchronize"]
    copies.take(torch.arange(3))[1]()  # of this machine: there at once, in the same memory
    assert noted == ["record", "synchronize"] and len(runtime.calls) == 1
    copies.close()


def test_the_runtime_of_cuda_is_torchs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: "runtime")
    assert hostcopies._cuda_runtime() == "runtime"
