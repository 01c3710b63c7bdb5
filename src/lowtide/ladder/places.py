"""Where weights, states and gradients live on each rung, and how they are read as tensors.

    rung       weights   states   gradients   inputs of blocks
    packed     device    device   device      device
    gradients  device    device   host        host
    optimizer  device    host     host        host
    layers     host      host     host        host
    disk       host      file     host        host        on a GPU
    disk       file      file     file        memory      on a CPU

Tables (embedding and output matrix) keep weights and gradients on the device on every rung. On a
CPU there is one memory, so rungs are packed and disk. What is computed in float32 needs all 24 bits
of the weights: there the rests lie with the weights, else with the moments.

In:      units, a rung
Out:     tensors of a unit on the device while they are used
Memory:  as the table says, and the slots of homes (homes.py)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lowtide.files import unused_name
from lowtide.ladder.homes import DeviceHome, FileHome, Home, HostHome
from lowtide.ladder.packing import Chunk, chunk_bytes, unpack_weights, view_chunk
from lowtide.ladder.units import Unit

__all__ = ["Moving", "Places", "Rung"]

Rung = Literal["packed", "gradients", "optimizer", "layers", "disk"]


@dataclass(frozen=True)
class Moving:
    """A chunk on the device, about to be moved by a step."""

    unit: Unit
    weights: Tensor
    chunk: Chunk
    gradients: Tensor
    position: int


class Places:
    """All that a model's matrices are, wherever it is."""

    def __init__(
        self,
        units: list[Unit],
        rung: Rung,
        device: torch.device,
        *,
        in_float32: bool,
        scratch_dir: Path | None = None,
    ) -> None:
        self.units = {unit.name: unit for unit in units}
        self.device, self._in_float32 = device, in_float32
        on_gpu = device.type == "cuda"
        tables = [unit for unit in units if unit.layer is None]
        blocks = [unit for unit in units if unit.layer is not None]
        self.host_inputs = on_gpu and rung != "packed"
        where = _homes(rung, on_gpu=on_gpu)

        def home(kind: str, sizes: dict[Hashable, int], *, slots: int) -> Home:
            if where[kind] == "file":
                path = unused_name((scratch_dir or Path()) / kind, "scratch")
                return FileHome(sizes, device, path, slots=slots)
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
                (unit.name, part.start): chunk_bytes(
                    part.stop - part.start, with_rests=not in_float32
                )
                for unit in units
                for part in unit.chunks()
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
        """A record of weights as bfloat16 and, where they are with it, the rests."""
        weights = record[: 2 * unit.size].view(torch.bfloat16)
        return weights, record[2 * unit.size :].view(torch.int8) if self._in_float32 else None

    # -- computing -----------------------------------------------------------------------------

    def begin(self, unit: Unit) -> None:
        """Start to bring a unit's weights to the device."""
        self._weight_home(unit).begin(unit.name)

    @contextlib.contextmanager
    def weights(self, unit: Unit) -> Generator[dict[str, Tensor]]:
        """A unit's matrices by name, in the precision that is computed in."""
        home = self._weight_home(unit)
        flat, rests = self._split(unit, home.get(unit.name))
        if rests is not None:
            # A block's in memory that all blocks share, a table's in its own.
            is_block = unit.layer is not None
            wide = (
                self._wide[: unit.size]
                if is_block
                else flat.new_empty(unit.size, dtype=torch.float32)
            )
            flat = unpack_weights(flat, rests, wide)
        yield {matrix.name: flat[matrix.where].view(matrix.shape) for matrix in unit.matrices}
        home.drop(unit.name)

    @contextlib.contextmanager
    def gradient_room(self, unit: Unit) -> Generator[Tensor]:
        """Memory for a unit's gradients, bfloat16; kept for the step when it is filled."""
        home = self._gradient_home(unit)
        yield home.room(unit.name).view(torch.bfloat16)
        home.put(unit.name)

    # -- a step ----------------------------------------------------------------------------------

    def iter_moving(self) -> Iterator[Moving]:
        """Every chunk in turn, the next one on its way; each is put back when it is left."""
        units = list(self.units.values())
        keys = [(unit.name, part.start) for unit in units for part in unit.chunks()]
        later_keys = iter(keys[1:])
        for unit, following in zip(units, [*units[1:], None], strict=True):
            gradients = self._gradient_home(unit).get(unit.name).view(torch.bfloat16)
            weights, rests = self._split(unit, self._weight_home(unit).get(unit.name))
            if following is not None:
                self._gradient_home(following).begin(following.name)
                self._weight_home(following).begin(following.name)
            for part in unit.chunks():
                key = (unit.name, part.start)
                states = self._states.get(key)
                if (later := next(later_keys, None)) is not None:
                    self._states.begin(later)
                own = None if rests is None else rests[part]
                chunk = view_chunk(states, part.stop - part.start, rests=own)
                place = unit.position + part.start
                yield Moving(unit, weights[part], chunk, gradients[part], place)
                self._states.put(key)
            self._gradient_home(unit).drop(unit.name)
            self._weight_home(unit).put(unit.name)

    # -- reading and filling, when nothing is under way ------------------------------------------

    def read(self, unit: Unit) -> tuple[Tensor, list[tuple[slice, Chunk]]]:
        """A unit's weights and states on the CPU."""
        self.wait()
        weights, rests = self._split(unit, self._weight_home(unit).read(unit.name))
        chunks: list[tuple[slice, Chunk]] = []
        for part in unit.chunks():
            memory = self._states.read((unit.name, part.start))
            own = None if rests is None else rests[part]
            chunks.append((part, view_chunk(memory, part.stop - part.start, rests=own)))
        return weights, chunks

    def fill(self, unit: Unit, change: Callable[[Tensor, list[tuple[slice, Chunk]]], None]) -> None:
        """Have `change` write a unit's weights and states on the CPU, then take them."""
        count = 3 if self._in_float32 else 2
        record = torch.zeros(count * unit.size, dtype=torch.uint8)
        weights, rests = self._split(unit, record)
        memories: list[Tensor] = []
        chunks: list[tuple[slice, Chunk]] = []
        for part in unit.chunks():
            size = part.stop - part.start
            memory = torch.zeros(chunk_bytes(size, with_rests=rests is None), dtype=torch.uint8)
            memories.append(memory)
            own = None if rests is None else rests[part]
            chunks.append((part, view_chunk(memory, size, rests=own)))
        change(weights, chunks)
        self._weight_home(unit).write(unit.name, record)
        for (part, _), memory in zip(chunks, memories, strict=True):
            self._states.write((unit.name, part.start), memory)

    @property
    def is_locked(self) -> bool:
        """Whether all host memory that is copied from is page-locked."""
        return all(home.is_locked for home in self._homes if isinstance(home, HostHome))

    def drop_all(self) -> None:
        """Be done with what is on the device, after a computation that failed."""
        for home in self._homes:
            home.drop_all()

    def wait(self) -> None:
        """Come back when everything is where it belongs."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for home in self._homes:
            home.wait()

    def close(self) -> None:
        """Return all memory, and the scratch files."""
        for home in self._homes:
            home.close()


def _homes(rung: Rung, *, on_gpu: bool) -> dict[str, str]:
    if not on_gpu:
        return dict.fromkeys(("weights", "states", "gradients"), "file" if rung == "disk" else "")
    host = {"gradients": 1, "optimizer": 2, "layers": 3, "disk": 3}.get(rung, 0)
    places = {
        "gradients": "host" if host >= 1 else "",
        "states": "host" if host >= 2 else "",
        "weights": "host" if host >= 3 else "",
    }
    return {**places, "states": "file"} if rung == "disk" else places
