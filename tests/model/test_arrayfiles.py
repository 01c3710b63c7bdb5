"""Tensors of a file mapped one by one, without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from lowtide.model.arrayfiles import ArrayFile

TENSORS = {
    "plain": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "half": torch.tensor([1.5, -2.25, 0.1], dtype=torch.bfloat16),
    "one": torch.tensor(7, dtype=torch.int64),
    "none": torch.zeros(0, 4),
}


def test_tensors_are_those_of_the_library(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    found = ArrayFile(tmp_path / "a.safetensors")
    assert sorted(found) == sorted(TENSORS) and len(found) == 4
    for name, tensor in TENSORS.items():
        wanted = tensor.float().numpy() if name == "half" else tensor.numpy()
        assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
        assert np.array_equal(found[name], wanted)


def test_a_file_holds_a_tensor_bit_for_bit(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    found = ArrayFile(tmp_path / "a.safetensors")
    plain = TENSORS["plain"].numpy()
    assert found.holds("plain", plain) and found.holds("none", np.zeros((0, 4), np.float32))
    assert found.holds("one", np.array(7))
    assert not found.holds("other", plain)
    assert not found.holds("plain", plain + 1)
    assert not found.holds("plain", plain.T.copy())
    assert not found.holds("plain", plain.astype(np.float64))
