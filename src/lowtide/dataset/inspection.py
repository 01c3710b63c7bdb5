"""Describe a dataset, and decode the text of any window of it.

In:      a dataset folder
Out:     text to print
Memory:  the requested window
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.counts import counted
from lowtide.dataset import layout
from lowtide.dataset.settings import InspectSettings
from lowtide.dataset.storeddatasets import load_any_info, open_small_files
from lowtide.dataset.summary import describe_cleaning
from lowtide.dataset.tokenfiles.shards import read_shard_tokens
from lowtide.engine.workstate import describe_work, is_work_folder
from lowtide.errors import UsageError
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget, format_size
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.needs import tokenizer_needs

__all__ = ["inspect_dataset", "plan_inspection", "read_window"]

_TOKENIZER_BYTES = 32 << 20
_SAMPLE_BYTES = 24 << 20  # a part of a sample text, its ids, and a cache
_TOKEN_BYTES = 64  # per token of a window: its id, its bytes, its number as text


def plan_inspection(settings: InspectSettings) -> int:
    """The budget of an inspection; a window that does not fit is refused."""
    budget = MemoryBudget.from_setting(settings.memory)
    tokenizer_bytes = _TOKENIZER_BYTES + tokenizer_needs(settings.dataset_dir).table_bytes
    shares = {"tokenizer": tokenizer_bytes, "window": settings.tokens * _TOKEN_BYTES}
    if settings.sample is not None:
        shares["sample"] = _SAMPLE_BYTES
    budget.require(shares)
    return budget.total_bytes


@takes_keywords(InspectSettings)
def inspect_dataset(settings: InspectSettings) -> str:
    """Describe a dataset, and decode `tokens` tokens of a split from `start` on.

    For a work folder shared by workers: their progress.
    """
    if is_work_folder(settings.dataset_dir):
        return describe_work(settings.dataset_dir)
    info = load_any_info(settings.dataset_dir)
    lines = [*_describe(info), ""]
    if "cleaning" in info.metadata:
        lines += [describe_cleaning(info.metadata["cleaning"]), ""]
    if info.num_tokens(settings.split) and settings.tokens:
        ids = read_window(info, settings.split, settings.start, settings.tokens)
        with open_small_files(info.root) as folder:
            text = Tokenizer.load(folder).decode(ids)
        last = settings.start + len(ids)
        lines += [f"{settings.split} tokens {settings.start:,} to {last:,}:", text]
        if settings.show_ids:
            lines += ["", " ".join(map(str, ids.tolist()))]
    return "\n".join(lines)


def _describe(info: layout.DatasetInfo) -> list[str]:
    metadata = info.metadata
    size = sum(
        shard.num_tokens * info.dtype.itemsize for rows in info.shards.values() for shard in rows
    )
    lines = [
        f"{info.root}: {sum(map(info.num_tokens, layout.SPLITS)):,} tokens, {format_size(size)}",
        f"  tokenizer  {metadata.get('tokenization')}, vocabulary {info.vocab_size:,}, "
        f"{info.dtype.name}, fingerprint {info.tokenizer_fingerprint[:12]}",
        f"  inputs     {counted(len(metadata.get('input_files', [])), 'file')}",
    ]
    for split in layout.SPLITS:
        shards = info.shards[split]
        documents = sum(shard.num_documents for shard in shards)
        lines.append(
            f"  {split:<9}  {counted(info.num_tokens(split), 'token')}, "
            f"{counted(documents, 'document')}, {counted(len(shards), 'shard')}"
        )
    moved_in = info.describe_moved_in()
    return lines if moved_in is None else [*lines, f"  note       {moved_in}"]


def read_window(
    info: layout.DatasetInfo, split: str, start: int, count: int
) -> npt.NDArray[np.uint32]:
    """Read `count` tokens of a split from `start` on, with its shards as one stream."""
    total = info.num_tokens(split)
    if not 0 <= start < total:
        raise UsageError(
            f"--start {start} is outside the {total} tokens of {split}",
            path=info.root,
            next_step=f"give --start 0 to {total - 1}",
        )
    parts: list[npt.NDArray[Any]] = []
    base = 0
    for shard in info.shards[split]:
        begin, end = max(start - base, 0), min(start + count - base, shard.num_tokens)
        if begin < end:
            parts.append(read_shard_tokens(shard, info.dtype, begin, end))
        base += shard.num_tokens
    return np.concatenate(parts).astype(np.uint32)
