"""Weights for the native decoder, as their files store them: bfloat16 stays two bytes.

In:      a folder with config.json and safetensors, of any family
Out:     DecoderNetwork; the bytes it will hold, before it is loaded
Memory:  the weights, or with load_decoder_in_turns the tables and one layer; a megabyte to convert
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
from lowtide.model.heldfiles import HeldFiles
from lowtide.model.tensorfiles import (
    PIECE_NUMBERS,
    find_tensors,
    read_exactly,
    require_weights,
    to_float32,
)
from lowtide.model.tensorheaders import ITEM_BYTES, StoredTensor
from lowtide.model.tensors import ModelTensor, iter_tensors, layer_of

__all__ = ["NETWORKS", "held_bytes", "load_decoder", "load_decoder_in_turns", "turns_bytes"]

_WIDE = ("gate.weight", "positions.weight")  # small matrices, always in float32
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def load_decoder(folder: Path) -> DecoderNetwork:
    """Load a network; all tensors are compared with the config before anything is allocated.

    Damaged weights are reported, and the newest undamaged checkpoint is loaded instead.
    """
    config, found = _look_into(folder)
    weights, held = dict[str, Array](), HeldFiles(found.values())
    for ours, parts in _by_parameter(config).items():
        weights[ours] = _make_place(ours, parts, found)
        _fill_parameter(weights[ours], parts, found, held)
    return DecoderNetwork(config, weights)


def load_decoder_in_turns(folder: Path) -> DecoderNetwork:
    """The same with all layers in the memory of one: each is read from disk when it is computed.

    This runs models larger than the memory; every token reads the whole model.
    """
    config, found = _look_into(folder)
    weights, held = dict[str, Array](), HeldFiles(found.values())
    shared: dict[object, Array] = {}
    layers: dict[int, list[tuple[Array, list[ModelTensor]]]] = defaultdict(list)
    for ours, parts in _by_parameter(config).items():
        layer, name = layer_of(ours)
        if layer is None:
            weights[ours] = _make_place(ours, parts, found)
            _fill_parameter(weights[ours], parts, found, held)
            continue
        key = _shared_key(name, ours, parts, found)
        if key not in shared:
            shared[key] = _make_place(ours, parts, found)
        weights[ours] = shared[key]
        layers[layer].append((shared[key], parts))

    def read(layer: int) -> None:
        for place, parts in layers[layer]:
            _fill_parameter(place, parts, found, held)

    return DecoderNetwork(config, weights, before_layer=read)


def _look_into(folder: Path) -> tuple[GPTConfig, Mapping[str, StoredTensor]]:
    """The config of an undamaged folder, and the locations of its tensors."""
    folder = find_intact(folder)
    config = load_config(folder)
    require_weights(folder, config)
    return config, find_tensors(folder, config)


def _make_place(ours: str, parts: list[ModelTensor], found: Mapping[str, StoredTensor]) -> Array:
    rows = sum(part.shape[-1 if part.transposed else 0] for part in parts)
    inner = parts[0].shape[:-1] if parts[0].transposed else parts[0].shape[1:]
    return np.empty((rows, *inner), _DTYPES[_held_kind(ours, parts, found)])


def _fill_parameter(
    weight: Array, parts: list[ModelTensor], found: Mapping[str, StoredTensor], held: HeldFiles
) -> None:
    for part in parts:
        place = weight if part.rows is None else weight[part.rows]
        _fill(place.T if part.transposed else place, found[part.name], held)


def _shared_key(
    name: str, ours: str, parts: list[ModelTensor], found: Mapping[str, StoredTensor]
) -> tuple[object, ...]:
    """A key that is equal for parameters of several layers that can share memory."""
    return name, _held_kind(ours, parts, found), *(part.shape for part in parts)


def turns_bytes(folder: Path, config: GPTConfig) -> int:
    """Memory of the weights with `load_decoder_in_turns`."""
    found = find_tensors(folder, config)
    held: dict[object, int] = {}
    for ours, parts in _by_parameter(config).items():
        layer, name = layer_of(ours)
        key = ours if layer is None else _shared_key(name, ours, parts, found)
        held[key] = _parameter_bytes(ours, parts, found)
    return sum(held.values())


def held_bytes(folder: Path, config: GPTConfig) -> int:
    """Memory of the weights of a folder when they are loaded."""
    found = find_tensors(folder, config)
    return sum(
        _parameter_bytes(ours, parts, found) for ours, parts in _by_parameter(config).items()
    )


def _parameter_bytes(ours: str, parts: list[ModelTensor], found: Mapping[str, StoredTensor]) -> int:
    size = ITEM_BYTES[_held_kind(ours, parts, found)]
    return size * sum(math.prod(part.shape) for part in parts)


def _by_parameter(config: GPTConfig) -> dict[str, list[ModelTensor]]:
    parameters: dict[str, list[ModelTensor]] = defaultdict(list)
    for tensor in iter_tensors(config):
        parameters[tensor.ours].append(tensor)
    return parameters


def _held_kind(ours: str, parts: Iterable[ModelTensor], found: Mapping[str, StoredTensor]) -> str:
    """The type of a parameter in memory: the stored type, if all its parts have the same."""
    kinds = {found[part.name].kind for part in parts}
    is_matrix = all(len(part.shape) == 2 for part in parts) and not ours.endswith(_WIDE)
    return kinds.pop() if is_matrix and len(kinds) == 1 and kinds < _DTYPES.keys() else "F32"


def _fill(place: Array, stored: StoredTensor, held: HeldFiles) -> None:
    """Copy a stored tensor into an array, some rows at a time."""
    is_same = place.dtype == _DTYPES.get(stored.kind)
    step = max(1, PIECE_NUMBERS // max(1, math.prod(stored.shape[1:])))
    file = held.at(stored)
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
