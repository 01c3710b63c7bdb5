"""Weights on disk: safetensors under transformers' names, so a run's folder is portable.

In:      GPT, or a folder with config.json and safetensors (ours, or of a supported family)
Out:     the other one
Memory:  some rows of a tensor when loading; when saving, the portable copies of split matrices
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowtide.checksumrecords import verify_folder
from lowtide.errors import DataError
from lowtide.model.arrayfiles import StoredForm, save_weights, stored_form
from lowtide.model.checksums import find_intact
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.devices import device_memory, pick_device
from lowtide.model.gpt import GPT
from lowtide.model.heldfiles import HeldFiles
from lowtide.model.tensorfiles import (
    PIECE_NUMBERS,
    find_tensors,
    read_exactly,
    require_weights,
)
from lowtide.model.tensorheaders import ITEM_BYTES, StoredTensor
from lowtide.model.tensors import ModelTensor, iter_tensors, layer_of

__all__ = [
    "NETWORKS",
    "STORED_TYPES",
    "TensorFile",
    "load_in_turns",
    "load_model",
    "load_network",
    "load_weights",
    "portable_tensors",
    "save_weights",
]

NetworkT = TypeVar("NetworkT", bound=GPT)

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {kind: dtype for dtype, kind in _KINDS.items()}
STORED_TYPES = frozenset(_KINDS)
"""The types of numbers that a file can hold."""


def portable_tensors(
    state: Mapping[str, Tensor], config: GPTConfig, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return a model's state dict under transformers' names, contiguous and on the CPU."""
    tensors: dict[str, Tensor] = {}
    # One parameter at a time, so that only one is copied to the CPU.
    for ours, parts in itertools.groupby(_by_parameter(config), lambda tensor: tensor.ours):
        whole = state[ours].detach().to("cpu", dtype)
        for part in parts:
            tensors[part.name] = _place(whole, part).contiguous()
    return tensors


def _by_parameter(config: GPTConfig) -> list[ModelTensor]:
    return sorted(iter_tensors(config), key=lambda tensor: tensor.ours)


def _place(parameter: Tensor, part: ModelTensor) -> Tensor:
    """The part of a parameter that one tensor of the files holds, in the files' layout."""
    rows = parameter if part.rows is None else parameter[part.rows]
    return rows.t() if part.transposed else rows


@stored_form.register
def _stored_tensor(value: Tensor) -> StoredForm:
    def read() -> memoryview:
        flat = value.detach().to("cpu").contiguous().flatten()
        return flat.view(torch.uint8).numpy().data

    return StoredForm(_KINDS[value.dtype], tuple(value.shape), read)


def load_weights(model: GPT, folder: str | Path, *, verify: bool = True) -> None:
    """Copy the weights of a folder into `model`, piece by piece, on any device.

    All tensors are found and compared with the config first, so nothing is half loaded.
    """
    if verify:
        verify_folder(folder)
    found = find_tensors(Path(folder), model.config)
    state, held = model.state_dict(), HeldFiles(found.values())
    for part in iter_tensors(model.config):
        _fill(_place(state[part.ours], part), found[part.name], held)


@torch.no_grad()
def _fill(place: Tensor, stored: StoredTensor, held: HeldFiles) -> None:
    """Copy a stored tensor into a parameter, some rows at a time."""
    row_numbers = math.prod(stored.shape[1:])
    step = max(1, PIECE_NUMBERS // max(1, row_numbers))
    file = held.at(stored)
    for first in range(0, stored.shape[0], step):
        rows = place[first : first + step]
        data = bytearray(rows.numel() * ITEM_BYTES[stored.kind])
        read_exactly(file, data, stored)
        if data:
            rows.copy_(torch.frombuffer(data, dtype=_TYPES[stored.kind]).view(rows.shape))


@contextlib.contextmanager
def _named_in_utf8(path: Path) -> Generator[str]:
    """A name of `path` that safetensors accepts: its own, or that of an open descriptor."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        with path.open("rb", buffering=0) as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield name


def _open(path: Path, use: Callable[[Any], Any]) -> Any:
    try:
        with _named_in_utf8(path) as name, safe_open(name, framework="pt") as file:
            return use(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"not a readable safetensors file: {error}", path=path) from None


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file by name, each read on access."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] = _open(path, lambda file: list(file.keys()))

    def __getitem__(self, name: str) -> Tensor:
        return _open(self._path, lambda file: file.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _allocate(model: GPT, device: str | torch.device) -> None:
    """Allocate an outline's weights; torch's own function imports half of its compiler."""
    for module in model.modules():
        for name, outline in list(module.named_parameters(recurse=False)):
            weight = torch.empty(outline.shape, dtype=outline.dtype, device=device)
            setattr(module, name, torch.nn.Parameter(weight))


def load_model(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    note: Callable[[str], None] | None = None,
) -> GPT:
    """Load a network from the folder of a run or of a transformers model.

    Damaged weights are reported by `note` (stderr if not given), and the newest undamaged
    checkpoint is loaded.
    """
    return load_network(GPT, folder, device=device, note=note)


def load_network(
    network: Callable[[GPTConfig], NetworkT],
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    note: Callable[[str], None] | None = None,
) -> NetworkT:
    """Load weights like `load_model`, into the network that `network` creates for their shape."""
    folder = find_intact(folder, note=note)
    config = load_config(folder)
    require_weights(folder, config)
    with torch.device("meta"):
        model = network(config)
    _allocate(model, device)
    model.reset_buffers()
    load_weights(model, folder, verify=False)
    return model.eval()


def load_in_turns(folder: str | Path, *, note: Callable[[str], None] | None = None) -> GPT:
    """Load a network on the CPU whose blocks share the memory of one.

    Each block is read from the files when it is computed, so a model that is larger than the memory
    can be evaluated, with the same numbers.
    """
    folder = find_intact(folder, note=note)
    config = load_config(folder)
    require_weights(folder, config)
    with torch.device("meta"):
        model = GPT(config)
    _allocate_once(model)
    model.reset_buffers()
    found = find_tensors(Path(folder), config)
    held = HeldFiles(found.values())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for block, parts in itertools.groupby(
        _by_parameter(config), lambda part: layer_of(part.ours)[0]
    ):
        places = [(_place(parameters[part.ours], part), found[part.name]) for part in parts]
        if block is None:
            _fill_all(places, held)
        else:
            hook = functools.partial(_fill_all, places, held)
            model.blocks[block].register_forward_pre_hook(hook)
    return model.eval()


def _fill_all(places: Iterable[tuple[Tensor, StoredTensor]], held: HeldFiles, *_: object) -> None:
    """Fill all tensors; also usable as a forward pre-hook of torch, which passes more arguments."""
    for place, stored in places:
        _fill(place, stored, held)


def _allocate_once(model: GPT) -> None:
    """Allocate an outline's weights, one memory for those of equal name and shape in all blocks."""
    shared: dict[tuple[str, torch.Size], torch.nn.Parameter] = {}
    for block in [model, *model.blocks]:
        for path, outline in list(block.named_parameters()):
            if block is model and layer_of(path)[0] is not None:
                continue
            weight = shared.get((path, outline.shape))
            if weight is None:
                weight = torch.nn.Parameter(torch.empty(outline.shape, dtype=outline.dtype))
                shared[path, outline.shape] = weight
            inner, _, name = path.rpartition(".")
            setattr(block.get_submodule(inner), name, weight)


class TorchNetworks:
    """Networks of torch, for evaluating and generating; the methods are documented in Networks."""

    def open(self, device: str) -> torch.device:
        return pick_device(device)

    def is_cpu(self, place: torch.device) -> bool:
        return place.type == "cpu"

    def device_memory(self, place: torch.device) -> Callable[[], tuple[int, int]] | None:
        return device_memory(place)

    def load(self, folder: Path, place: torch.device) -> GPT:
        return load_model(folder, device=place)


NETWORKS = TorchNetworks()
