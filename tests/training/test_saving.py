"""Saving beside training: from a copy, in order, errors not lost, memory used again."""

import threading

import pytest
import torch
from safetensors.torch import load_file

from lowtide.errors import BudgetError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training import checkpoints
from lowtide.training.checkpoints import Checkpoint, RunFolder
from lowtide.training.saving import CheckpointSaver, _HostCopy

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
        assert go_on.wait(10)
        return save(*arguments)

    monkeypatch.setattr(run, "save", slow)
    with CheckpointSaver(run, background=True, rename=as_they_are) as saver:
        saver.save(Checkpoint(1, weights, {}, {}), CONFIG, wait=False)
        weights["a"] += 1  # training goes on meanwhile
        go_on.set()
    assert load_file(run.root / "model.safetensors")["a"].tolist() == [0.0, 0.0, 0.0]


def test_an_error_in_the_background_is_raised(run, monkeypatch):
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: 10)
    with (
        pytest.raises(BudgetError),
        CheckpointSaver(run, background=True, rename=as_they_are) as saver,
    ):
        saver.save(Checkpoint(1, {"a": torch.zeros(3)}, {}, {}), CONFIG, wait=False)


@pytest.mark.parametrize("background", [False, True])
def test_weights_are_written_under_portable_names(run, background):
    model = GPT(CONFIG)
    with CheckpointSaver(run, background=background) as saver:
        saver.save_best(dict(model.state_dict()), CONFIG, {"step": 3})
        saver.save(Checkpoint(3, dict(model.state_dict()), {}, {}), CONFIG, wait=True)
        for folder in (run.root, run.best_dir):
            found = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
            assert torch.equal(found, model.embedding.weight)


def test_a_copy_has_the_structure_and_its_memory_is_used_again():
    copies = _HostCopy()
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
