"""Restore moments of a checkpoint into torch's optimizers; convert those of old checkpoints.

In:      the newest checkpoint of a run: state.safetensors, or state.pt of older versions
Out:     restored optimizers; an old checkpoint in the current format
Memory:  one tensor at a time; an old state is mapped
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from lowtide.errors import DataError
from lowtide.model.weights import TensorFile
from lowtide.training.checkpoints import OLD_STATE_NAME, RunFolder, naming_checkpoint
from lowtide.training.distributed import ProcessGroup, whole_tensors
from lowtide.training.optimizers import OptimizerSet

__all__ = ["load_moments"]


def load_moments(
    optimizers: OptimizerSet, run: RunFolder, numbers: dict[str, Any], group: ProcessGroup
) -> Path:
    """Restore the optimizers' moments; return the folder they were in."""
    if not run.is_old():
        folder, tensors, _ = run.load(TensorFile)
        optimizers.load(tensors, numbers["optimizers"])
        return folder
    optimizers.load_old(_read(run.newest_dir()))
    moments = whole_tensors(optimizers.moments())
    group.wait()  # until every process has read it
    if group.is_first:
        run.renew(moments, {"optimizers": optimizers.numbers()})
    group.wait()
    return run.newest_dir()


def _read(folder: Path) -> list[dict[str, Any]]:
    """The optimizers' states from torch's old format."""
    path = folder / OLD_STATE_NAME
    with naming_checkpoint(folder):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return state["optimizers"]
        except (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError,
                pickle.UnpicklingError) as error:  # fmt: skip
            reason = str(error).partition(". ")[0]
            raise DataError(f"the training state cannot be read: {reason}", path=path) from None
