"""The folder of a run: weights, state for exact resume, the best weights, metrics; all atomic.

    checkpoints/NAME/
      config.json  tokenizer.json  model.safetensors    the newest weights, for transformers too
      settings.json  metrics.jsonl
      steps/step_00000500/  model.safetensors  state.pt  state.json      the last few
      best/  config.json  tokenizer.json  model.safetensors  best.json

In:      tensors and a few numbers from the loop
Out:     a folder per checkpoint, renamed into place when all of it is on the disk
Memory:  nothing beside what it is given
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowtide.errors import BudgetError, DataError
from lowtide.files import (
    atomic_file,
    free_disk_bytes,
    partial_path,
    publish,
    read_json,
    sync_directory,
    write_json,
)
from lowtide.memory import format_size
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_weights, save_weights

__all__ = ["Checkpoint", "RunFolder", "all_tensors"]

_WEIGHTS = "model.safetensors"
_STATE = "state.pt"
_NUMBERS = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything the loop needs to go on as if it had never stopped."""

    step: int
    weights: dict[str, Tensor]
    """Under portable names, on the CPU, when they are written."""
    tensors: Any
    """Optimizer moments and random states."""
    numbers: dict[str, Any]
    """What fits into JSON: data position, counters, best loss."""

    @property
    def num_bytes(self) -> int:
        """What it takes on the disk, nearly."""
        return sum(
            t.numel() * t.element_size()
            for t in (*self.weights.values(), *all_tensors(self.tensors))
        )


def all_tensors(value: Any) -> list[Tensor]:
    """Give the tensors of a structure, in its order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in all_tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in all_tensors(item)]
    return []


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, root: str | Path, *, keep: int = 2) -> None:
        self.root = Path(root)
        self.keep = keep

    @property
    def metrics_path(self) -> Path:
        """Where the run's numbers go."""
        return self.root / "metrics.jsonl"

    @property
    def best_dir(self) -> Path:
        """Where the weights with the lowest validation loss are."""
        return self.root / "best"

    def create(self) -> None:
        """Make the folder and remove what a killed run left half written."""
        (self.root / "steps").mkdir(parents=True, exist_ok=True)
        for left in (self.root / "steps").glob(".*.partial"):
            shutil.rmtree(left)

    def step_dirs(self) -> list[Path]:
        """Give the finished checkpoints, oldest first."""
        return sorted((self.root / "steps").glob("step_*"))

    def exists(self) -> bool:
        """Tell whether there is something to go on from."""
        return bool(self.step_dirs())

    def save(self, checkpoint: Checkpoint, config: GPTConfig) -> Path:
        """Write a checkpoint; it appears when all of it is on the disk, then older ones go."""
        self._require_space(checkpoint)
        folder = self.root / "steps" / f"step_{checkpoint.step:08d}"
        numbers = {"step": checkpoint.step, **checkpoint.numbers}
        if folder.exists():  # the same weights; what an evaluation found since is new
            write_json(folder / _NUMBERS, numbers)
            return folder
        partial = partial_path(folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            save_weights(partial / _WEIGHTS, checkpoint.weights)
            with atomic_file(partial / _STATE) as file:
                torch.save(checkpoint.tensors, file)
            write_json(partial / _NUMBERS, numbers)
            write_json(partial / "config.json", config.to_huggingface())
            partial.replace(folder)
            sync_directory(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        write_json(self.root / "config.json", config.to_huggingface())
        _link_or_copy(folder / _WEIGHTS, self.root / _WEIGHTS)
        for old in self.step_dirs()[: -self.keep]:
            shutil.rmtree(old)
        return folder

    def _require_space(self, checkpoint: Checkpoint) -> None:
        needed, free = checkpoint.num_bytes + (1 << 20), free_disk_bytes(self.root)
        if needed > free:
            raise BudgetError(
                f"a checkpoint takes {format_size(needed)}, the disk has {format_size(free)} free; "
                "the last one is untouched",
                path=self.root,
                next_step="free some space, then give the same command again",
            )

    def save_best(
        self, weights: dict[str, Tensor], config: GPTConfig, numbers: Mapping[str, Any]
    ) -> None:
        """Write the weights with the lowest validation loss so far."""
        self.best_dir.mkdir(exist_ok=True)
        save_weights(self.best_dir / _WEIGHTS, weights)
        write_json(self.best_dir / "config.json", config.to_huggingface())
        write_json(self.best_dir / "best.json", dict(numbers))

    def load_config(self) -> GPTConfig:
        """Give the shape of the newest checkpoint."""
        folder = self.step_dirs()[-1]
        with _advice(folder):
            return load_config(folder)

    def load_weights(self, model: GPT) -> None:
        """Copy the newest checkpoint's weights into `model`, where there is a checkpoint."""
        for folder in self.step_dirs()[-1:]:
            with _advice(folder):
                load_weights(model, folder)

    def load(self, *, map_location: str | torch.device = "cpu") -> tuple[Path, Any, dict[str, Any]]:
        """Give the newest checkpoint's folder, tensors (mapped until used) and numbers."""
        folder = self.step_dirs()[-1]
        with _advice(folder):
            try:
                tensors = torch.load(
                    folder / _STATE, map_location=map_location, weights_only=True, mmap=True
                )
            except (OSError, RuntimeError, EOFError) as error:
                reason = str(error).partition(". ")[0]
                raise DataError(
                    f"the training state cannot be read: {reason}", path=folder / _STATE
                ) from None
            return folder, tensors, read_json(folder / _NUMBERS)

    def forget_metrics_after(self, step: int, evaluated_step: int) -> None:
        """Drop rows a killed run wrote after its last checkpoint: they will come again."""
        if not self.metrics_path.exists():
            return
        with (
            self.metrics_path.open("rb") as old,
            atomic_file(self.metrics_path) as new,
        ):
            for line in old:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue  # cut off by the kill
                last = evaluated_step if row.get("event") == "eval" else step
                if row.get("step", -1) <= last:
                    new.write(line)


@contextlib.contextmanager
def _advice(folder: Path) -> Generator[None]:
    """Say of a checkpoint that cannot be read how the run goes on without it."""
    try:
        yield
    except DataError as error:
        raise DataError(
            error.message,
            path=error.path,
            next_step=f"remove {folder}; the run goes on from the checkpoint before it, if there is"
            " one",
        ) from None


def _link_or_copy(source: Path, target: Path) -> None:
    """Give `source` a second name; a copy where the file system has no hard links."""
    partial = partial_path(target)
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    publish(target)
