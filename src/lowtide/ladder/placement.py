"""Where weights, states and gradients are stored on each rung, and how they are read as tensors.

    rung       weights   states   gradients   inputs of blocks
    packed     device    device   device      device
    gradients  device    device   host        host
    optimizer  device    host     host        host
    layers     host      host     host        host
    disk       host      file     host        host        on a GPU
    disk-all   file      file     file        host        on a GPU
    disk       file      file     file        memory      on a CPU

Tables (embedding and output matrix) keep weights and gradients on the device on every rung. On a
CPU there is one memory, so rungs are packed and disk (disk-all is the same). Computation in float32
needs all 24 bits of the weights: then the low 8 bits are stored with the weights, otherwise
with the states.

AdamW updates a chunk of numbers at a time: its states are one record. Muon needs the momentum of
whole matrices before it updates any weight: momentum and low bits are separate records, so that
each is fetched once a step.

In:      units, a rung
Out:     tensors of a unit on the device while they are used
Memory:  as the table says, and the slots of homes (homes.py)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lowtide.ladder.filehome import FileHome
from lowtide.ladder.homes import DeviceHome, Home, HostHome
from lowtide.ladder.packing import (
    Chunk,
    chunk_bytes,
    momentum_bytes,
    unpack_weights,
    view_chunk,
    view_momentum,
)
from lowtide.ladder.units import Unit
from lowtide.quickclasses import dataclass
from lowtide.unfinished import unused_name

__all__ = ["Moving", "Placement", "Rung"]

Rung = Literal["packed", "gradients", "optimizer", "layers", "disk", "disk-all"]


@dataclass(frozen=True)
class Moving:
    """A unit on the device during its optimizer step."""

    unit: Unit
    weights: Tensor
    low_bits: Tensor | None
    """The low bits, if they are stored with the weights."""
    gradients: Tensor
    _records: Callable[[str], Iterator[tuple[slice, Tensor]]]

    def iter_chunks(self) -> Iterator[tuple[slice, Chunk]]:
        """AdamW's states, with the next ones prefetched; each is stored again after use."""
        for part, record in self._records("states"):
            yield part, view_chunk(record, _length(part), low_bits=self._own(part))

    def iter_momentum(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Codes and scales of Muon's momentum, in the same way."""
        for part, record in self._records("momentum"):
            yield part, *view_momentum(record, _length(part))

    def iter_low_bits(self) -> Iterator[tuple[slice, Tensor]]:
        """The low bits of Muon's weights, in the same way."""
        if self.low_bits is not None:
            yield slice(0, self.unit.size), self.low_bits
            return
        for part, record in self._records("low_bits"):
            yield part, record.view(torch.int8)

    def _own(self, part: slice) -> Tensor | None:
        return None if self.low_bits is None else self.low_bits[part]


class Placement:
    """A model's matrices, their states and gradients, wherever each is stored."""

    def __init__(
        self,
        units: list[Unit],
        rung: Rung,
        device: torch.device,
        *,
        in_float32: bool,
        muon: bool = False,
        scratch_dir: Path | None = None,
        apart: bool | None = None,
    ) -> None:
        """`apart`: whether the device has its own memory; detected if not given."""
        self.units = {unit.name: unit for unit in units}
        self.device, self._in_float32, self._muon = device, in_float32, muon
        on_gpu = device.type == "cuda" if apart is None else apart
        tables = [unit for unit in units if unit.layer is None]
        blocks = [unit for unit in units if unit.layer is not None]
        self.host_inputs = on_gpu and rung != "packed"
        where = _homes(rung, on_gpu=on_gpu)

        def home(kind: str, sizes: dict[Hashable, int], *, slots: int) -> Home:
            if where[kind] == "file":
                path = unused_name((scratch_dir or Path()) / kind, "scratch")
                return FileHome(sizes, device, path, slots=slots, staged=on_gpu)
            if where[kind] == "host":
                return HostHome(sizes, device, slots=slots)
            return DeviceHome(sizes, device)

        weight_bytes = 3 if in_float32 else 2
        self._table_weights = DeviceHome({u.name: weight_bytes * u.size for u in tables}, device)
        self._table_gradients = DeviceHome({u.name: 2 * u.size for u in tables}, device)
        self._weights = home("weights", {u.name: weight_bytes * u.size for u in blocks}, slots=2)
        self._gradients = home("gradients", {u.name: 2 * u.size for u in blocks}, slots=2)
        self._states = home(
            "states",
            {
                (unit.name, kind, part.start): self._record_bytes(kind, part)
                for unit in units
                for kind, part in self._records(unit)
            },
            slots=3,
        )
        largest = max((unit.size for unit in blocks), default=0) if in_float32 else 0
        self._wide = torch.empty(largest, device=device)

    @property
    def _homes(self) -> tuple[Home, ...]:
        return (
            self._table_weights, self._table_gradients,
            self._weights, self._gradients, self._states,
        )  # fmt: skip

    def _weight_home(self, unit: Unit) -> Home:
        return self._table_weights if unit.layer is None else self._weights

    def _gradient_home(self, unit: Unit) -> Home:
        return self._table_gradients if unit.layer is None else self._gradients

    def _split(self, unit: Unit, record: Tensor) -> tuple[Tensor, Tensor | None]:
        """A record of weights as bfloat16 and, if it contains them, the low bits."""
        weights = record[: 2 * unit.size].view(torch.bfloat16)
        return weights, record[2 * unit.size :].view(torch.int8) if self._in_float32 else None

    def is_muons(self, unit: Unit) -> bool:
        """True if Muon updates a unit; tables use AdamW."""
        return self._muon and unit.layer is not None

    def _records(self, unit: Unit) -> Iterator[tuple[str, slice]]:
        """The records of a unit's states in the order in which a step takes them."""
        kinds = ("states",)
        if self.is_muons(unit):
            kinds = ("momentum",) if self._in_float32 else ("momentum", "low_bits")
        for kind in kinds:
            for part in unit.chunks():
                yield kind, part

    def _record_bytes(self, kind: str, part: slice) -> int:
        count = _length(part)
        if kind == "states":
            return chunk_bytes(count, with_low_bits=not self._in_float32)
        return momentum_bytes(count) if kind == "momentum" else count

    # -- computing -----------------------------------------------------------------------------

    def begin(self, unit: Unit) -> None:
        """Start copying a unit's weights to the device (prefetch)."""
        self._weight_home(unit).begin(unit.name)

    @contextlib.contextmanager
    def weights(self, unit: Unit) -> Generator[dict[str, Tensor]]:
        """A unit's matrices by name, in the precision of the computation."""
        home = self._weight_home(unit)
        flat, low_bits = self._split(unit, home.get(unit.name))
        if low_bits is not None:
            # Blocks share one buffer, each table has its own.
            is_block = unit.layer is not None
            wide = (
                self._wide[: unit.size]
                if is_block
                else flat.new_empty(unit.size, dtype=torch.float32)
            )
            flat = unpack_weights(flat, low_bits, wide)
        yield {matrix.name: flat[matrix.where].view(matrix.shape) for matrix in unit.matrices}
        home.drop(unit.name)

    @contextlib.contextmanager
    def gradient_room(self, unit: Unit) -> Generator[Tensor]:
        """Memory for a unit's gradients, bfloat16; stored for the step after the block."""
        home = self._gradient_home(unit)
        yield home.room(unit.name).view(torch.bfloat16)
        home.put(unit.name)

    # -- a step ----------------------------------------------------------------------------------

    def iter_moving(self) -> Iterator[Moving]:
        """Every unit in turn, with the next one prefetched; each is stored again after use."""
        units = list(self.units.values())
        keys = [(u.name, kind, part.start) for u in units for kind, part in self._records(u)]
        later_keys = iter(keys[1:])
        for unit, following in zip(units, [*units[1:], None], strict=True):
            gradients = self._gradient_home(unit).get(unit.name).view(torch.bfloat16)
            weights, low_bits = self._split(unit, self._weight_home(unit).get(unit.name))
            if following is not None:
                self._gradient_home(following).begin(following.name)
                self._weight_home(following).begin(following.name)
            records = functools.partial(self._iter_records, unit, later_keys)
            yield Moving(unit, weights, low_bits, gradients, records)
            self._gradient_home(unit).drop(unit.name)
            self._weight_home(unit).put(unit.name)

    def _iter_records(
        self, unit: Unit, later_keys: Iterator[Hashable], kind: str
    ) -> Iterator[tuple[slice, Tensor]]:
        for part in unit.chunks():
            key = (unit.name, kind, part.start)
            record = self._states.get(key)
            if (later := next(later_keys, None)) is not None:
                self._states.begin(later)
            yield part, record
            self._states.put(key)

    # -- reading and filling, outside of steps ---------------------------------------------------

    def read(self, unit: Unit) -> tuple[Tensor, list[tuple[slice, Chunk]]]:
        """A unit's weights and states on the CPU."""
        self.wait()
        weights, low_bits = self._split(unit, self._weight_home(unit).read(unit.name))
        found = {
            (kind, part.start): self._states.read((unit.name, kind, part.start))
            for kind, part in self._records(unit)
        }
        return weights, self._chunks(unit, low_bits, found)

    def fill(self, unit: Unit, change: Callable[[Tensor, list[tuple[slice, Chunk]]], None]) -> None:
        """Let `change` write a unit's weights and states on the CPU, then store them."""
        count = 3 if self._in_float32 else 2
        record = torch.zeros(count * unit.size, dtype=torch.uint8)
        weights, low_bits = self._split(unit, record)
        found = {
            (kind, part.start): torch.zeros(self._record_bytes(kind, part), dtype=torch.uint8)
            for kind, part in self._records(unit)
        }
        change(weights, self._chunks(unit, low_bits, found))
        self._weight_home(unit).write(unit.name, record)
        for (kind, start), memory in found.items():
            self._states.write((unit.name, kind, start), memory)

    def _chunks(
        self, unit: Unit, low_bits: Tensor | None, found: Mapping[tuple[str, int], Tensor]
    ) -> list[tuple[slice, Chunk]]:
        """The chunks of a unit, as views of the records of its states."""
        chunks: list[tuple[slice, Chunk]] = []
        for part in unit.chunks():
            own = None if low_bits is None else low_bits[part]
            if not self.is_muons(unit):
                chunk = view_chunk(found["states", part.start], _length(part), low_bits=own)
            else:
                codes, scales = view_momentum(found["momentum", part.start], _length(part))
                if own is None:
                    own = found["low_bits", part.start].view(torch.int8)
                chunk = Chunk(own, codes, codes[:0], scales, scales[:0])
            chunks.append((part, chunk))
        return chunks

    @property
    def is_locked(self) -> bool:
        """True if all host memory that is copied from is page-locked."""
        return all(home.is_locked for home in self._homes)

    def drop_all(self) -> None:
        """Release everything on the device, after a failed computation."""
        for home in self._homes:
            home.drop_all()

    def wait(self) -> None:
        """Wait until all copies are complete."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for home in self._homes:
            home.wait()

    def close(self) -> None:
        """Return all memory, and the scratch files."""
        for home in self._homes:
            home.close()


def _length(part: slice) -> int:
    return part.stop - part.start


def _homes(rung: Rung, *, on_gpu: bool) -> dict[str, str]:
    """Where each kind of record is stored: "" on the device, "host" or "file"."""
    kinds = ("weights", "states", "gradients")
    if not on_gpu:
        return dict.fromkeys(kinds, "file" if rung.startswith("disk") else "")
    if rung == "disk-all":
        return dict.fromkeys(kinds, "file")
    host = {"gradients": 1, "optimizer": 2, "layers": 3, "disk": 3}.get(rung, 0)
    places = {
        "gradients": "host" if host >= 1 else "",
        "states": "host" if host >= 2 else "",
        "weights": "host" if host >= 3 else "",
    }
    return {**places, "states": "file"} if rung == "disk" else places
