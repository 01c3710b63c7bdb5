"""Checkpoints written while training continues: a fast copy to host memory, the rest in a thread.

In:      tensors on the device, numbers
Out:     calls of RunFolder.save and save_best, in order, with portable tensors
Memory:  host memory for one checkpoint and one set of weights, reused
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.training.checkpoints import Checkpoint, RunFolder

__all__ = ["CheckpointSaver", "Snapshot"]

Rename = Callable[[Mapping[str, Any], Any], dict[str, Any]]


class Snapshot(Protocol):
    """Copies tensors of a structure to host memory, which is reused."""

    def take(self, value: Any) -> tuple[Any, Callable[[], None]]:
        """Start copying; return the copy, and a function that waits until it is complete."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class CheckpointSaver:
    """Writes checkpoints one at a time, directly or from a copy in a thread."""

    def __init__(
        self,
        run: RunFolder,
        *,
        background: bool,
        rename: Rename,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        self._run, self._rename = run, rename
        self._pool = ThreadPoolExecutor(1, "lowtide-save") if background else None
        self._copies = {"checkpoint": snapshot(), "best": snapshot()}
        self._pending: dict[str, Future[None]] = {}

    def save(self, checkpoint: Checkpoint, config: GPTConfig | ModuleConfig, *, wait: bool) -> None:
        """Write a checkpoint; with `wait`, return only when everything is on the disk."""

        def write(copy: tuple[dict[str, Any], Any]) -> None:
            weights = self._rename(copy[0], config)
            whole = dataclasses.replace(checkpoint, weights=weights, tensors=copy[1])
            self._run.save(whole, config)

        self._write("checkpoint", (checkpoint.weights, checkpoint.tensors), write)
        if wait:
            self.finish()

    def save_best(
        self, weights: dict[str, Any], config: GPTConfig | ModuleConfig, numbers: Mapping[str, Any]
    ) -> None:
        """Write the weights with the lowest validation loss so far."""

        def write(copy: dict[str, Any]) -> None:
            self._run.save_best(self._rename(copy, config), config, numbers)

        self._write("best", weights, write)

    def _write(self, kind: str, value: Any, write: Callable[[Any], None]) -> None:
        if self._pool is None:
            write(value)
            return
        self._finish(kind)  # its copy is about to be overwritten
        copy, is_there = self._copies[kind].take(value)

        def wait_and_write() -> None:
            is_there()
            write(copy)

        self._pending[kind] = self._pool.submit(wait_and_write)

    def _finish(self, kind: str) -> None:
        if kind in self._pending:
            self._pending.pop(kind).result()

    def finish(self) -> None:
        """Wait for a write in progress; its error is raised here."""
        for kind in tuple(self._pending):
            self._finish(kind)

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, *details: object) -> None:
        try:
            self.finish()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            for copy in self._copies.values():
                copy.close()
