"""A network with packed matrices: its outline, their storage, initial weights, and files.

In:      a shape and a seed, or a folder of weights
Out:     packed weights and states; what a checkpoint holds, read tensor by tensor
Memory:  beside the storage one unit in float32
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowtide.checksumrecords import verify_folder
from lowtide.errors import UsageError
from lowtide.ladder.muon import PackedMuon
from lowtide.ladder.packing import BLOCK, Chunk, pack_weights, unpack_weights
from lowtide.ladder.placement import Placement, Rung
from lowtide.ladder.smalls import Smalls
from lowtide.ladder.torchdraws import TorchDraws
from lowtide.ladder.units import Matrix, Unit, small_shapes, units_of
from lowtide.memory import release_free_memory, return_large_blocks
from lowtide.model.arrayfiles import StoredForm, iter_weights, stored_form
from lowtide.model.config import GPTConfig
from lowtide.model.firstweights import iter_first_weights
from lowtide.model.gpt import GPT
from lowtide.model.tensors import iter_tensors
from lowtide.quickclasses import dataclass

__all__ = ["PackedGPT", "Stored"]

_ADAMW_KEYS = {"first": "I8", "second": "U8", "first_scales": "F32", "second_scales": "F32"}
_MUON_KEYS = {"first": "I8", "first_scales": "F32"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint that is read from storage when the file is written."""

    kind: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type."""
        return np.dtype({"F32": np.float32, "I8": np.int8, "U8": np.uint8}[self.kind])

    @property
    def nbytes(self) -> int:
        """Its size in a file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> Stored:
        """Some of its rows."""
        count = len(range(*rows.indices(self.shape[0])))
        return Stored(self.kind, (count, *self.shape[1:]), lambda: self.read()[rows])

    @property
    def T(self) -> Stored:  # noqa: N802  (as arrays of all frameworks call it)
        """The transpose."""
        return Stored(self.kind, self.shape[::-1], lambda: self.read().t())


@stored_form.register
def _stored(value: Stored) -> StoredForm:
    def read() -> memoryview:
        return value.read().detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return StoredForm(value.kind, value.shape, read)


class PackedGPT:
    """A torch network with matrices in `Placement`; the loop sees its shape and its weights."""

    backend = "torch"

    def __init__(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> None:
        if config.family.rereads_embedding:
            raise UsageError(
                f"the {config.layout} layout cannot be offloaded: its blocks read the embedding",
                next_step="leave out --offload, or give --layout qwen3",
            )
        self.config = config
        with torch.device("meta"):
            self.outline = GPT(config)
        self.units = units_of(self.outline)
        self._seed, self._zero_init = seed, zero_init
        self.first_embedding: Tensor | None = None
        self._folder: Path | None = None
        self.placement: Placement | None = None
        self.smalls: Smalls | None = None
        self.muon: PackedMuon | None = None

    def load_weights(self, folder: Path, *, verify: bool = True) -> None:
        """Note the folder to take weights from; `settle` reads it."""
        if verify:
            verify_folder(folder)
        self._folder = folder

    def settle(
        self,
        rung: Rung,
        device: torch.device,
        *,
        in_float32: bool,
        muon: bool = False,
        scratch_dir: Path | None,
        apart: bool | None = None,
    ) -> None:
        """Allocate storage and fill it with initial weights, or with those of the folder."""
        if device.type == "cpu":  # where tensors of each block are freed before the next
            return_large_blocks()
        self.smalls = Smalls(small_shapes(self.outline), device)
        self.placement = Placement(
            self.units,
            rung,
            device,
            in_float32=in_float32,
            muon=muon,
            scratch_dir=scratch_dir,
            apart=apart,
        )
        self.muon = PackedMuon(self.outline, self.units, device) if muon else None
        values = self.smalls.named(self.smalls.values)
        if self._folder is None:
            weights = _first_weights(self.config, self._seed, zero_init=self._zero_init)
        else:
            weights = _folder_weights(self._folder, self.config)
        matrices = {m.name: (u, m) for u in self.units for m in u.matrices}
        pending: dict[str, Tensor] = {}
        missing = {unit.name: len(unit.matrices) for unit in self.units}
        for name, value in weights:
            if name == "embedding.weight" and self.first_embedding is not None:
                value, self.first_embedding = self.first_embedding, None
            if name in values:
                values[name].copy_(value)
                continue
            unit, matrix = matrices[name]
            if unit.name not in pending:
                pending[unit.name] = torch.zeros(unit.size)
            pending[unit.name][matrix.where] = value.flatten()
            missing[unit.name] -= 1
            if missing[unit.name] == 0:
                self._fill(unit, pending.pop(unit.name))
        release_free_memory()

    def _fill(self, unit: Unit, wide: Tensor) -> None:
        def change(weights: Tensor, chunks: list[tuple[slice, Chunk]]) -> None:
            for part, chunk in chunks:
                pack_weights(wide[part], weights[part], chunk.low_bits)

        assert self.placement is not None
        self.placement.fill(unit, change)

    # -- files -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The weights under our names, float32; each is read when the file is written."""
        assert self.smalls is not None
        last = _LastRead(self)
        found = {
            matrix.name: Stored("F32", matrix.shape, functools.partial(last.weights, unit, matrix))
            for unit in self.units
            for matrix in unit.matrices
        }
        return {**found, **self.smalls.named(self.smalls.values)}

    def moments(self) -> dict[str, Any]:
        """The optimizer's tensors as `moments.PARAMETER.KEY`, read when the file is written."""
        assert self.smalls is not None
        last = _LastRead(self)
        found: dict[str, Any] = {}
        for unit in self.units:
            for matrix in unit.matrices:
                for key, kind in self._keys(unit).items():
                    count = -(-matrix.size // _numbers_by(key))
                    read = functools.partial(last.moment, unit, matrix, key)
                    found[f"moments.{matrix.name}.{key}"] = Stored(kind, (count,), read)
        for key in ("first", "second"):
            for name, value in self.smalls.named(getattr(self.smalls, key)).items():
                found[f"moments.{name}.{key}"] = value
        return {**found, **self._rows()}

    def _keys(self, unit: Unit) -> dict[str, str]:
        """The keys that a checkpoint has for each matrix of a unit, and their types."""
        assert self.placement is not None
        return _MUON_KEYS if self.placement.is_muons(unit) else _ADAMW_KEYS

    def _rows(self) -> dict[str, Tensor]:
        """The mean squares of rows of Muon's matrices."""
        rows = {} if self.muon is None else self.muon.rows
        return {f"moments.{name}.rows": value for name, value in rows.items()}

    def load_moments(self, tensors: Mapping[str, Any]) -> None:
        """Restore moments, unit by unit."""
        assert self.smalls is not None and self.placement is not None
        for key in ("first", "second"):
            for name, place in self.smalls.named(getattr(self.smalls, key)).items():
                place.copy_(torch.from_numpy(np.array(tensors[f"moments.{name}.{key}"])))
        for name, place in self._rows().items():
            place.copy_(torch.from_numpy(np.array(tensors[name])))
        for unit in self.units:
            self._load_unit(unit, tensors)

    def _load_unit(self, unit: Unit, tensors: Mapping[str, Any]) -> None:
        assert self.placement is not None
        old_weights, old_chunks = self.placement.read(unit)

        def change(weights: Tensor, chunks: list[tuple[slice, Chunk]]) -> None:
            weights.copy_(old_weights)
            for (_, chunk), (_, old) in zip(chunks, old_chunks, strict=True):
                chunk.low_bits.copy_(old.low_bits)
            for matrix in unit.matrices:
                for key in self._keys(unit):
                    value = torch.from_numpy(np.array(tensors[f"moments.{matrix.name}.{key}"]))
                    for chunk, there, here in _overlaps(matrix, chunks, _numbers_by(key)):
                        getattr(chunk, key)[there] = value[here]

        self.placement.fill(unit, change)


class _LastRead:
    """Reads matrices from storage, with the last unit cached.

    Files are written in the order of names, in which tensors of one unit are adjacent.
    """

    def __init__(self, model: PackedGPT) -> None:
        assert model.placement is not None
        self._placement = model.placement
        self._unit: Unit | None = None
        self._found: tuple[Tensor, list[tuple[slice, Chunk]]] | None = None

    def _read(self, unit: Unit) -> tuple[Tensor, list[tuple[slice, Chunk]]]:
        if self._found is None or self._unit is not unit:
            self._found = None  # freed before the next one is read
            self._unit, self._found = unit, self._placement.read(unit)
        return self._found

    def weights(self, unit: Unit, matrix: Matrix) -> Tensor:
        """A matrix in float32."""
        weights, chunks = self._read(unit)
        out = torch.empty(matrix.size)
        for chunk, there, here in _overlaps(matrix, chunks, 1):
            own = weights[matrix.start + here.start : matrix.start + here.stop]
            unpack_weights(own, chunk.low_bits[there], out[here])
        return out.view(matrix.shape)

    def moment(self, unit: Unit, matrix: Matrix, key: str) -> Tensor:
        """One of its moments, or the scales of one."""
        parts = _overlaps(matrix, self._read(unit)[1], _numbers_by(key))
        return torch.cat([getattr(chunk, key)[there] for chunk, there, _ in parts])


def _numbers_by(key: str) -> int:
    """How many numbers of a matrix share one number of this key (1, or 128 for scales)."""
    return BLOCK if key.endswith("scales") else 1


def _overlaps(
    matrix: Matrix, chunks: list[tuple[slice, Chunk]], by: int
) -> Iterator[tuple[Chunk, slice, slice]]:
    """Chunks that overlap a matrix, with the range in the chunk and the range in the matrix."""
    first, last = matrix.start // by, -(-matrix.where.stop // by)
    for part, chunk in chunks:
        start = part.start // by
        begin, end = max(start, first), min(part.stop // by, last)
        if begin < end:
            yield chunk, slice(begin - start, end - start), slice(begin - first, end - first)


def _folder_weights(folder: Path, config: GPTConfig) -> Iterator[tuple[str, Tensor]]:
    """Whole parameters of a folder under our names; split ones are joined."""
    rows_left: dict[str, int] = {}
    pieces: dict[str, list[tuple[int, Tensor]]] = {}
    for part in iter_tensors(config):
        rows_left[part.ours] = rows_left.get(part.ours, 0) + 1
    for name, rows, array in iter_weights(folder, config):
        pieces.setdefault(name, []).append((rows.start or 0, torch.from_numpy(np.array(array))))
        rows_left[name] -= 1
        if rows_left[name] == 0:
            parts = [piece for _, piece in sorted(pieces.pop(name), key=lambda pair: pair[0])]
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


def _first_weights(
    config: GPTConfig, seed: int, *, zero_init: bool
) -> Iterator[tuple[str, Tensor]]:
    """The first weights that `torch.manual_seed(seed); GPT(config)` has, one at a time."""
    draws = TorchDraws(seed)
    for name, value in iter_first_weights(config, seed, zero_init=zero_init, draws=draws):
        yield name, torch.from_numpy(value)
