"""Weights for the native decoder, as their files store them: bfloat16 stays two bytes.

In:      a folder with config.json and safetensors, of any family
Out:     DecoderNetwork; the bytes it will hold, before it is loaded
Memory:  the weights, and a megabyte of those that are converted or turned
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from lowtide.errors import UsageError
from lowtide.model.checksums import find_intact
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.decoder import Array, DecoderNetwork
from lowtide.model.tensorfiles import (
    ITEM_BYTES,
    PIECE_NUMBERS,
    StoredTensor,
    find_tensors,
    read_exactly,
    require_weights,
    to_float32,
)
from lowtide.model.tensors import ModelTensor, iter_tensors

__all__ = ["NETWORKS", "held_bytes", "load_decoder"]

_WIDE = ("gate.weight", "positions.weight")  # small matrices, whose numbers are always float32
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def load_decoder(folder: Path) -> DecoderNetwork:
    """Load a network; all tensors are compared with the config before anything is allocated.

    Weights that are not what the run wrote are named, and the newest checkpoint that is whole is
    taken.
    """
    folder = find_intact(folder)
    config = load_config(folder)
    require_weights(folder, config)
    found = find_tensors(folder, config)
    weights: dict[str, Array] = {}
    for ours, parts in _by_parameter(config).items():
        rows = sum(part.shape[-1 if part.transposed else 0] for part in parts)
        inner = parts[0].shape[:-1] if parts[0].transposed else parts[0].shape[1:]
        weight = weights[ours] = np.empty((rows, *inner), _DTYPES[_held_kind(ours, parts, found)])
        for part in parts:
            place = weight if part.rows is None else weight[part.rows]
            _fill(place.T if part.transposed else place, found[part.name])
    return DecoderNetwork(config, weights)


def held_bytes(folder: Path, config: GPTConfig) -> int:
    """What the weights of a folder take when they are loaded."""
    found = find_tensors(folder, config)
    return sum(
        ITEM_BYTES[_held_kind(ours, parts, found)] * sum(math.prod(part.shape) for part in parts)
        for ours, parts in _by_parameter(config).items()
    )


def _by_parameter(config: GPTConfig) -> dict[str, list[ModelTensor]]:
    parameters: dict[str, list[ModelTensor]] = defaultdict(list)
    for tensor in iter_tensors(config):
        parameters[tensor.ours].append(tensor)
    return parameters


def _held_kind(ours: str, parts: Iterable[ModelTensor], found: Mapping[str, StoredTensor]) -> str:
    """The type of a parameter's numbers in memory: the stored one, where all its parts share it."""
    kinds = {found[part.name].kind for part in parts}
    is_matrix = all(len(part.shape) == 2 for part in parts) and not ours.endswith(_WIDE)
    return kinds.pop() if is_matrix and len(kinds) == 1 and kinds < _DTYPES.keys() else "F32"


def _fill(place: Array, stored: StoredTensor) -> None:
    """Copy a stored tensor to its place, some rows at a time."""
    is_same = place.dtype == _DTYPES.get(stored.kind)
    step = max(1, PIECE_NUMBERS // max(1, math.prod(stored.shape[1:])))
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.offset)
        for first in range(0, stored.shape[0], step):
            rows = place[first : first + step]
            if is_same and rows.flags.c_contiguous:
                read_exactly(file, rows.reshape(-1).view(np.uint8).data, stored)
                continue
            data = bytearray(rows.size * ITEM_BYTES[stored.kind])
            read_exactly(file, data, stored)
            numbers = np.frombuffer(data, place.dtype) if is_same else to_float32(data, stored.kind)
            rows[...] = numbers.reshape(rows.shape)


class DecoderNetworks:
    """Networks in native code, for generating; the methods are documented in Networks."""

    def open(self, device: str) -> str:
        if device not in ("auto", "cpu"):
            raise UsageError(
                f"device is {device!r}, and the native backend computes on the CPU",
                next_step="leave --backend out, or give --device cpu",
            )
        return "cpu"

    def is_cpu(self, place: str) -> bool:
        return True

    def device_memory(self, place: str) -> Callable[[], tuple[int, int]] | None:
        return None

    def load(self, folder: Path, place: str) -> DecoderNetwork:
        return load_decoder(folder)


NETWORKS = DecoderNetworks()
