"""A network whose matrices are packed: its outline, where they live, the first weights, files.

In:      a shape and a seed, or a folder of weights
Out:     packed weights and states; what a checkpoint holds, read tensor by tensor
Memory:  beside the places one unit in float32
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowtide.errors import UsageError
from lowtide.ladder.packing import BLOCK, Chunk, pack_weights, unpack_weights
from lowtide.ladder.places import Places, Rung
from lowtide.ladder.smalls import Smalls
from lowtide.ladder.units import Matrix, Unit, small_shapes, units_of
from lowtide.memory import release_free_memory, return_large_blocks
from lowtide.model.arrayfiles import StoredForm, iter_weights, stored_form
from lowtide.model.checksums import verify_folder
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.tensors import ModelTensor, iter_tensors

__all__ = ["PackedGPT", "Stored", "portable_form"]

_KEYS = {"first": "I8", "second": "U8", "first_scales": "F32", "second_scales": "F32"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint that is read from its place when it is written."""

    kind: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def dtype(self) -> np.dtype[Any]:
        """As NumPy names it."""
        return np.dtype({"F32": np.float32, "I8": np.int8, "U8": np.uint8}[self.kind])

    @property
    def nbytes(self) -> int:
        """Its size in a file."""
        return math.prod(self.shape) * self.dtype.itemsize


@stored_form.register
def _stored(value: Stored) -> StoredForm:
    def read() -> memoryview:
        return value.read().detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return StoredForm(value.kind, value.shape, read)


class PackedGPT:
    """A network of torch whose matrices are in places; the loop sees its shape and its weights."""

    backend = "torch"

    def __init__(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> None:
        if config.layout == "tide":
            raise UsageError(
                "the tide layout cannot be offloaded: every block of it reads the embedding",
                next_step="leave out --offload, or give --layout qwen3",
            )
        self.config = config
        with torch.device("meta"):
            self.outline = GPT(config)
        self.units = units_of(self.outline)
        self._seed, self._zero_init = seed, zero_init
        self._folder: Path | None = None
        self.places: Places | None = None
        self.smalls: Smalls | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of weights and states, wherever they are."""
        return sum(5 * unit.size + 8 * (unit.size // BLOCK) for unit in self.units)

    def load_weights(self, folder: Path, *, verify: bool = True) -> None:
        """Take the weights of a folder, when there is a place for them."""
        if verify:
            verify_folder(folder)
        self._folder = folder

    def settle(
        self, rung: Rung, device: torch.device, *, in_float32: bool, scratch_dir: Path | None
    ) -> None:
        """Make the places and fill them with the first weights, or with those of the folder."""
        if device.type == "cpu":  # where one block's tensors come and go after the other's
            return_large_blocks()
        self.smalls = Smalls(small_shapes(self.outline), device)
        self.places = Places(
            self.units, rung, device, in_float32=in_float32, scratch_dir=scratch_dir
        )
        values = self.smalls.named(self.smalls.values)
        if self._folder is None:
            weights = _first_weights(self.config, self._seed, zero_init=self._zero_init)
        else:
            weights = _folder_weights(self._folder, self.config)
        matrices = {m.name: (u, m) for u in self.units for m in u.matrices}
        pending: dict[str, Tensor] = {}
        missing = {unit.name: len(unit.matrices) for unit in self.units}
        for name, value in weights:
            if name in values:
                values[name].copy_(value)
                continue
            unit, matrix = matrices[name]
            wide = pending.setdefault(unit.name, torch.zeros(unit.size))
            wide[matrix.where] = value.flatten()
            missing[unit.name] -= 1
            if missing[unit.name] == 0:
                self._fill(unit, pending.pop(unit.name))
        release_free_memory()

    def _fill(self, unit: Unit, wide: Tensor) -> None:
        def change(weights: Tensor, chunks: list[tuple[slice, Chunk]]) -> None:
            for part, chunk in chunks:
                pack_weights(wide[part], weights[part], chunk.rests)

        assert self.places is not None
        self.places.fill(unit, change)

    # -- files -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The weights under our names, float32, each read when it is written."""
        found: dict[str, Any] = {}
        for unit in self.units:
            for matrix in unit.matrices:
                read = _reader(self._read_weights, unit, matrix)
                found[matrix.name] = Stored("F32", matrix.shape, read)
        assert self.smalls is not None
        return {**found, **self.smalls.named(self.smalls.values)}

    def _read_weights(self, unit: Unit, matrix: Matrix) -> Tensor:
        assert self.places is not None
        weights, chunks = self.places.read(unit)
        out = torch.empty(matrix.size)
        for part, chunk in chunks:
            begin, end = max(part.start, matrix.start), min(part.stop, matrix.where.stop)
            if begin < end:
                inside = slice(begin - part.start, end - part.start)
                unpack_weights(
                    weights[begin:end].contiguous(),
                    chunk.rests[inside].contiguous(),
                    out[begin - matrix.start : end - matrix.start],
                )
        return out.view(matrix.shape)

    def moments(self) -> dict[str, Any]:
        """The optimizer's tensors as `moments.PARAMETER.KEY`."""
        found: dict[str, Any] = {}
        for unit in self.units:
            for matrix in unit.matrices:
                for key, kind in _KEYS.items():
                    count = matrix.size if "scales" not in key else -(-matrix.size // BLOCK)
                    read = _reader(self._read_moment, unit, matrix, key)
                    found[f"moments.{matrix.name}.{key}"] = Stored(kind, (count,), read)
        assert self.smalls is not None
        for key in ("first", "second"):
            for name, value in self.smalls.named(getattr(self.smalls, key)).items():
                found[f"moments.{name}.{key}"] = value
        return found

    def _read_moment(self, unit: Unit, matrix: Matrix, key: str) -> Tensor:
        assert self.places is not None
        _, chunks = self.places.read(unit)
        by = BLOCK if "scales" in key else 1
        first, last = matrix.start // by, -(-matrix.where.stop // by)
        parts: list[Tensor] = []
        for part, chunk in chunks:
            begin, end = max(part.start // by, first), min(part.stop // by, last)
            if begin < end:
                start = part.start // by
                parts.append(getattr(chunk, key)[begin - start : end - start].clone())
        return torch.cat(parts)

    def load_moments(self, tensors: Mapping[str, Any]) -> None:
        """Take moments back, unit by unit."""
        assert self.smalls is not None and self.places is not None
        for key in ("first", "second"):
            for name, place in self.smalls.named(getattr(self.smalls, key)).items():
                place.copy_(torch.from_numpy(np.array(tensors[f"moments.{name}.{key}"])))
        for unit in self.units:
            self._load_unit(unit, tensors)

    def _load_unit(self, unit: Unit, tensors: Mapping[str, Any]) -> None:
        assert self.places is not None
        old_weights, old_chunks = self.places.read(unit)

        def change(weights: Tensor, chunks: list[tuple[slice, Chunk]]) -> None:
            weights.copy_(old_weights)
            for (_, chunk), (_, old) in zip(chunks, old_chunks, strict=True):
                chunk.rests.copy_(old.rests)
            for matrix in unit.matrices:
                for key in _KEYS:
                    value = torch.from_numpy(np.array(tensors[f"moments.{matrix.name}.{key}"]))
                    by = BLOCK if "scales" in key else 1
                    first = matrix.start // by
                    for part, chunk in chunks:
                        start = part.start // by
                        begin, end = max(start, first), min(part.stop // by, first + len(value))
                        if begin < end:
                            place = getattr(chunk, key)[begin - start : end - start]
                            place.copy_(value[begin - first : end - first])

        self.places.fill(unit, change)


def portable_form(state: Mapping[str, Any], config: GPTConfig) -> dict[str, Any]:
    """Tensors of a state dict under transformers' names, each read when it is written."""

    def read(part: ModelTensor) -> Tensor:
        whole = state[part.ours]
        value = whole.read() if isinstance(whole, Stored) else whole
        rows = value if part.rows is None else value[part.rows]
        return rows.t() if part.transposed else rows

    return {p.name: Stored("F32", p.shape, _reader(read, p)) for p in iter_tensors(config)}


def _reader(read: Callable[..., Tensor], *arguments: Any) -> Callable[[], Tensor]:
    return lambda: read(*arguments)


def _folder_weights(folder: Path, config: GPTConfig) -> Iterator[tuple[str, Tensor]]:
    """Whole parameters of a folder under our names; those in parts are put together."""
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
    """The first weights that `torch.manual_seed(seed); GPT(config)` has, one block at a time.

    Modules draw numbers when they are made, then the network draws its own in the order of the
    parameters: the first round is gone through for what it takes from the generator.
    """
    torch.manual_seed(seed)
    with torch.device("meta"):
        outline = GPT(config)
    for module in outline.modules():
        _draw_as_made(module)
    residual_std = 0.02 / math.sqrt(2 * config.num_layers)
    for name, parameter in outline.named_parameters():
        if parameter.ndim >= 2:
            residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
            value = torch.empty(parameter.shape)
            nn.init.normal_(value, std=residual_std if residual else 0.02)
            yield name, value.zero_() if zero_init and residual else value
        else:
            fill = 0.0 if name.endswith("bias") else 1.0
            yield name, torch.full(parameter.shape, fill)


def _draw_as_made(module: nn.Module) -> None:
    """Draw what torch draws for a module of this kind when it is made."""
    if isinstance(module, nn.Embedding):
        torch.empty(module.weight.shape).normal_()
    elif isinstance(module, nn.Linear):
        nn.Linear(
            module.in_features, module.out_features, bias="bias" in dict(module.named_parameters())
        )
