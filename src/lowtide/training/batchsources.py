"""Sources of batches for the loop: datasets and streams, as endless iterators.

In:      a dataset, a loader, or any iterator of batches with a state
Out:     batches of this process's rows
Memory:  as the loader's: batches prepared ahead
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Protocol

from lowtide.aliases import own_name
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields, setting_values
from lowtide.loader.batches import BatchLoader, SampleSource
from lowtide.loader.mixtures import Mixture
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.settings import require
from lowtide.training.ownbatches import OwnBatches
from lowtide.training.settinggroups import DataSettings, ModelSettings
from lowtide.training.settings import TrainSettings

__all__ = [
    "BatchSource",
    "bound_ids",
    "open_batches",
    "refuse_data_options",
    "require_row_length",
    "require_sources",
    "row_length",
]

# Options that decide how data is opened, by what replaces them if data is given.
_OPENING = {
    **dict.fromkeys(
        (field.name for field in dataclasses.fields(DataSettings) if field.name != "check_data"),
        "give TokenDataset(…) what it takes of it",
    ),
    "val_data_path": "give val_data",
    "eval_dataset_dir": "give eval_data",
    **dict.fromkeys(("replay_dataset_dir", "replay_fraction"), "give a Mixture as data"),
}


class _Rank(Protocol):
    """The share of rows of this process, and the memory they are put in."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def pins_memory(self) -> bool: ...


class BatchSource(Protocol):
    """An endless iterator of batches with a state."""

    def __next__(self) -> tuple[Any, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_batches(
    data: SampleSource | StreamingDataLoader | BatchSource,
    settings: TrainSettings,
    group: _Rank,
    *,
    rows: int,
    config: GPTConfig | ModuleConfig,
) -> BatchSource:
    """Return batches of `rows` rows, without end; this process's share where there are several.

    A user's own batches are taken as they are, and checked.
    """
    if isinstance(data, StreamingDataLoader):
        return data.endless()
    if not hasattr(data, "plan_rows"):
        if isinstance(data, BatchLoader):
            return data
        vocab_size = config.vocab_size if isinstance(config, GPTConfig) else None
        return OwnBatches(data, vocab_size=vocab_size)  # pyright: ignore[reportArgumentType]
    return BatchLoader(
        data,  # pyright: ignore[reportArgumentType]
        batch_size=rows,
        order=settings.data.order,
        seed=settings.learning.seed,
        prefetch_batches=settings.machine.num_workers,
        rank=group.rank,
        world_size=group.world_size,
        pin_memory=group.pins_memory,
    )


def require_sources(data: Any, val_data: Any, eval_data: Any) -> None:
    """Refuse values that are neither a dataset nor batches, such as a path."""
    if not isinstance(eval_data, Mapping | None):
        raise UsageError(
            f"eval_data is of type {type(eval_data).__name__}, expected a dict of names and data",
            next_step='give eval_data={"general": lowtide.TokenDataset(…)}',
        )
    others: dict[str, Any] = {"val_data": val_data, **(eval_data or {})}
    needed = ("__next__", "state_dict", "load_state_dict", "close")
    is_loader = isinstance(data, StreamingDataLoader) or hasattr(data, "plan_rows")
    if not is_loader and not all(hasattr(data, name) for name in needed):
        raise _no_source("data", data, "or an iterator of batches with state_dict")
    for name, other in others.items():
        if other is not None and not hasattr(getattr(other, "dataset", other), "get_batch"):
            raise _no_source(name, other, "or a BatchLoader over one")


def refuse_data_options(options: Iterable[str], settings: TrainSettings, data: Any) -> None:
    """Refuse options of how data is opened if data is given: they would have no effect.

    `order` is for datasets only; batches have their own. Values from a preset or a config file are
    ignored instead, since they are meant for data opened by its path.
    """
    fields = setting_fields(type(settings))
    values = setting_values(settings)
    for name in (own_name(option, fields) for option in options):
        is_followed = name == "order" and hasattr(data, "plan_rows")
        if name in _OPENING and values[name] != fields[name].default and not is_followed:
            raise UsageError(
                f"{name} is for data that is yet to be opened, and data was given",
                next_step=f"leave it out ({_OPENING[name]}), or let lowtide.train(…) open the data",
            )


def bound_ids(
    config: GPTConfig | ModuleConfig, data: Any, held_out: Mapping[str, Any], tokenizer: Any
) -> None:
    """Let data refuse ids that a network has no rows for; which a module has, it knows.

    Bytes of ids that are evaluated are the tokenizer's, which has to know them.
    """
    most = config.vocab_size if isinstance(config, GPTConfig) else None
    _bound(data, most)
    if tokenizer is not None:
        if most is not None and tokenizer.vocab_size > most:  # before anything is written
            raise UsageError(
                f"the tokenizer has {tokenizer.vocab_size:,} ids, the model's embedding "
                f"{most:,} rows",
                next_step="give the tokenizer that the data was made with, and a GPTConfig with "
                f"vocab_size={tokenizer.vocab_size}",
            )
        most = min(most or tokenizer.vocab_size, tokenizer.vocab_size)
    for other in held_out.values():
        _bound(other, most)


def _bound(source: Any, most: int | None) -> None:
    data = getattr(source, "dataset", source)
    if most is not None and isinstance(data, TokenDataset | Mixture | StreamingDataLoader):
        data.bound_ids(most)


def _no_source(name: str, value: Any, or_else: str) -> UsageError:
    path = repr(str(value)) if isinstance(value, str | PurePath) else "PATH_OR_ARRAY"
    return UsageError(
        f"{name} is of type {type(value).__name__}, expected a TokenDataset, {or_else}",
        next_step=f"give lowtide.TokenDataset({path}, split='train', seq_len=…)",
    )


def require_row_length(model: ModelSettings, data: Any) -> None:
    """Refuse another row length than the data's: steps and tokens would be miscounted."""
    found = row_length(None, data)
    if found is not None:
        require(model.seq_len == found, "seq_len", model.seq_len, f"{found}, as rows of the data")


def row_length(model: ModelSettings | None, data: Any) -> int | None:
    """The tokens of a row, from the data, or else from the settings."""
    found = getattr(getattr(data, "dataset", data), "seq_len", None)
    return model.seq_len if found is None and model is not None else found
