"""Check that all processes of a run have the same settings, data and checkpoint.

In:      the settings, data and checkpoint of each process, exchanged between all
Out:     UsageError in every process if they differ; nothing if they agree, or for one process

Processes synchronize in every step: one with another number of steps would wait for ever, and with
different learning rates their weights would diverge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.settings import settings_as_json
from lowtide.training.backends import Group
from lowtide.training.settings import TrainSettings

__all__ = ["require_same_checkpoint", "require_same_data", "require_same_settings"]

# Paths, and settings that only one process uses; data is compared by its fingerprint.
_MAY_DIFFER = {
    "checkpoints_dir", "cache_dir", "cache_size", "offload_dir",
    "dataset_dir", "input_file", "train_data_path", "dataset_id",
    "val_data_path", "eval_dataset_dir", "replay_dataset_dir",
    "device", "num_workers", "memory", "vram", "keep_checkpoints", "debug", "tensorboard", "wandb",
}  # fmt: skip


def require_same_settings(group: Group, settings: TrainSettings) -> None:
    """Refuse settings that differ from those of the first process."""
    if group.world_size == 1:
        return
    said = settings_as_json(settings)
    own = {name: value for name, value in said.items() if name not in _MAY_DIFFER}
    if found := _difference(group.all_say(own)):
        name, first, number, other = found
        raise UsageError(
            f"{flag_name(name)} is {first} in process 0 and {other} in process {number}",
            next_step="give the same command to all processes",
        )


def require_same_data(group: Group, datasets: Mapping[str, Any]) -> None:
    """Refuse data with another content than the first process's; paths may differ."""
    if group.world_size == 1:
        return
    own = {name: _fingerprint(data) for name, data in datasets.items()}
    if found := _difference(group.all_say(own)):
        name, first, number, other = found
        raise UsageError(
            f"{name} is {first or 'not there'} in process 0 and {other or 'not there'} in process "
            f"{number}",
            next_step="give all processes the same data, or copies of it",
        )


def require_same_checkpoint(group: Group, root: Path, newest: Path | None) -> None:
    """Refuse a run's folder whose newest checkpoint differs from the first process's."""
    if group.world_size == 1:
        return
    own = {"newest": None if newest is None else newest.name}
    if found := _difference(group.all_say(own)):
        _, first, number, other = found
        raise UsageError(
            f"process {number} does not see the run's folder as process 0 does: it finds "
            f"{other or 'no checkpoint'} there, process 0 {first or 'none'}",
            path=root,
            next_step="give --checkpoints-dir a folder that all processes share",
        )


def _difference(said: list[dict[str, Any]]) -> tuple[str, Any, int, Any] | None:
    """The first name whose value is another: (name, first process's, which process, its own)."""
    first = said[0]
    for number, other in enumerate(said):
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                return name, first.get(name), number, other.get(name)
    return None


def _fingerprint(data: Any) -> str:
    """A short hash of the data's content; the user's own iterators have none."""
    found = getattr(getattr(data, "dataset", data), "fingerprint", None)
    return found[:12] if isinstance(found, str) else "given"
