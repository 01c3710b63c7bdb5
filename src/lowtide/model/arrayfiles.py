"""Tensors of any framework in safetensors files; read back as NumPy arrays without a framework.

In:      tensors by name: NumPy arrays, or what a framework has registered with `stored_form`
Out:     a safetensors file, byte for byte as the library writes it; its arrays, mapped
Memory:  none besides the tensors; files are mapped, and pages resident only while they are used
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lowtide.files import atomic_path, checksum_file
from lowtide.model.checksums import record_checksums
from lowtide.model.config import GPTConfig
from lowtide.model.heldfiles import unchanged
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.tensorfiles import find_tensors
from lowtide.model.tensorheaders import StoredTensor, header_bytes, read_header
from lowtide.model.tensors import iter_tensors

__all__ = [
    "ArrayFile",
    "StoredForm",
    "iter_portable",
    "iter_weights",
    "save_weights",
    "stored_form",
]

Array = np.ndarray[Any, Any]

_KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DTYPES = {kind: np.dtype(name) for name, kind in _KINDS.items()}


class StoredForm(NamedTuple):
    """A tensor as a file holds it."""

    kind: str
    """F32, U8, … as safetensors names them."""
    shape: tuple[int, ...]
    read: Callable[[], memoryview]
    """Return its bytes, copied to the host if necessary."""


@functools.singledispatch
def stored_form(value: Any) -> StoredForm:
    """Return a tensor as a file holds it; a framework registers its own kind of tensor."""
    raise TypeError(f"{type(value).__name__} is not a tensor that a file can hold")


@stored_form.register
def _stored_array(value: np.ndarray) -> StoredForm:  # pyright: ignore[reportMissingTypeArgument]
    def read() -> memoryview:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data

    return StoredForm(_KINDS[value.dtype.name], value.shape, read)


def save_weights(path: str | Path, tensors: Mapping[str, Any], *, record: bool = True) -> None:
    """Write tensors to one safetensors file, atomically, and its checksum beside it.

    Without `record` the checksum is left to the caller, who writes several files at once.
    """
    path = Path(path)
    with atomic_path(path) as partial:
        with partial.open("r+b", buffering=0) as file:
            _write_tensors(file, tensors)
        if record:
            record_checksums(path.parent, {path.name: checksum_file(partial)})


def _write_tensors(file: FileIO, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file directly from the tensors' memory; the library would copy it all.

    Tensors are in the library's order, wide types first, then by name, for the same bytes.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    forms = {name: stored_form(tensors[name])[:2] for name in order}
    _write_all(file, header_bytes(forms))
    for name in order:
        _write_all(file, stored_form(tensors[name]).read())


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:  # one call writes 2 GiB at most
        left = left[file.write(left) :]


class ArrayFile(Mapping[str, Array]):
    """The tensors of a safetensors file by name, each mapped on access."""

    def __init__(self, path: Path) -> None:
        self._tensors = read_header(path)

    def __getitem__(self, name: str) -> Array:
        return _map(self._tensors[name])

    def holds(self, name: str, value: Any) -> bool:
        """True if the file has the same tensor, bit for bit."""
        if name not in self._tensors:
            return False
        stored, form = self._tensors[name], stored_form(value)
        if (stored.kind, stored.shape) != form[:2]:
            return False
        wanted = form.read()
        there = np.memmap(stored.path, np.uint8, "r", stored.offset, len(wanted) or 1)
        return there.data[: len(wanted)] == wanted

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _map(tensor: StoredTensor) -> Array:
    """Map a tensor read-only; bfloat16, which NumPy does not have, becomes float32."""
    kind = np.dtype("<u2") if tensor.kind == "BF16" else _DTYPES[tensor.kind]
    if 0 in tensor.shape:  # an empty tensor cannot be mapped
        return np.empty(tensor.shape, kind)
    found = np.memmap(
        tensor.path, kind, "r", offset=tensor.offset, shape=tensor.shape or (1,)
    ).reshape(tensor.shape)
    if tensor.kind == "BF16":
        return (found.astype("<u4") << 16).view("<f4")
    return found


def iter_weights(folder: Path, config: GPTConfig) -> Iterator[tuple[str, slice, Array]]:
    """Yield (our name of a parameter, rows of it, float32 numbers), part by part, from a folder.

    All of them are found and compared with the config first.
    """
    found = find_tensors(folder, config)
    with unchanged(found.values()):
        for part in iter_tensors(config):
            array = _map(found[part.name]).astype(np.float32, copy=False)
            yield part.ours, part.rows or slice(None), array.T if part.transposed else array


def iter_portable(
    state: Mapping[str, Any], config: GPTConfig | ModuleConfig
) -> Iterator[tuple[str, Any]]:
    """Yield (transformers' name, part) of tensors of any framework under our names, as views.

    The tensors of a module have the names that it gave them.
    """
    if isinstance(config, ModuleConfig):
        yield from state.items()
        return
    for part in iter_tensors(config):
        piece = state[part.ours] if part.rows is None else state[part.ours][part.rows]
        yield part.name, piece.T if part.transposed else piece
