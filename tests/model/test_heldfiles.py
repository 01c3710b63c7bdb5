"""Files of tensors that are replaced while they are read: as they were, or an error."""

import gc
import warnings

import pytest
import torch

from lowtide.errors import DataError
from lowtide.files import write_json
from lowtide.model.arrayfiles import iter_weights, save_weights
from lowtide.model.heldfiles import HeldFiles, unchanged
from lowtide.model.tensorfiles import copy_tensors, find_tensors
from lowtide.model.weights import portable_tensors

from .networks import make_model


@pytest.fixture
def folder(tmp_path):
    model = make_model("qwen3")
    write_json(tmp_path / "config.json", model.config.to_huggingface())
    save_weights(tmp_path / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    return tmp_path, model.config


def replace(folder):
    """Do as a run does: another file under the same name."""
    path = folder / "model.safetensors"
    other = path.with_suffix(".other")
    other.write_bytes(bytes(len(path.read_bytes())))
    other.replace(path)


def test_held_files_are_read_as_they_were_and_closed_at_the_end(folder):
    root, config = folder
    found = find_tensors(root, config)
    held = HeldFiles(found.values())
    stored = found["model.norm.weight"]
    known = held.at(stored).read(stored.num_bytes)
    replace(root)
    assert held.at(stored).read(stored.num_bytes) == known
    file = held.at(stored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del held
        gc.collect()
    assert file.closed


def test_what_was_replaced_meanwhile_is_refused(folder):
    root, config = folder
    found = find_tensors(root, config)
    with unchanged(found.values()):
        pass
    with pytest.raises(DataError, match="replaced while they were read") as caught:  # noqa: SIM117
        with unchanged(found.values()):
            replace(root)
    assert caught.value.path == root / "model.safetensors"


def test_nothing_is_exported_of_two_checkpoints(folder):
    root, config = folder
    out = root / "out.safetensors"
    seen = []

    def on_bytes(count):
        if not seen:
            replace(root)
        seen.append(count)

    with pytest.raises(DataError, match="replaced while they were read"):
        copy_tensors(root, out, config=config, dtype=None, on_bytes=on_bytes)
    assert seen and not out.exists()


def test_no_arrays_are_loaded_of_two_checkpoints(folder):
    root, config = folder
    parts = iter_weights(root, config)
    name, _, array = next(parts)
    assert name == "embedding.weight" and torch.isfinite(torch.from_numpy(array.copy())).all()
    replace(root)
    with pytest.raises(DataError, match="replaced while they were read"):
        list(parts)
