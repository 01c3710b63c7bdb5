"""What each stage needs, by the stage's own formulas; and data in memory, mapped and streamed.

In:      DataFacts, the chosen training, the machine
Out:     StageNeed rows; LoadingWay rows
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.corpus.evaluations import planned_item_bytes, smallest_item_budget
from lowtide.dataset import resources
from lowtide.loader import batches
from lowtide.loader.footprint import planned_bytes
from lowtide.memory import format_size
from lowtide.model.sizing import count_parameters
from lowtide.planning.choices import Choice
from lowtide.planning.machine import Machine
from lowtide.planning.plandata import DataFacts
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import footprint as tokenizer_footprint
from lowtide.tokenizer.countingplan import smallest_budget_bytes

__all__ = ["LoadingWay", "StageNeed", "has_disk", "loading_ways", "stage_needs"]

_INT64_BYTES = 8
_LIST_BYTES = 40  # of an id in a Python list: a pointer, and an int object
_SHUFFLE_BUFFER = 10_000
_LOADING_PROGRAM_BYTES = 29 << 20  # interpreter and NumPy, measured


@dataclass(frozen=True)
class StageNeed:
    """What one command takes."""

    stage: str
    memory_bytes: int
    """Expected peak of resident memory on the host."""
    least_bytes: int
    """The smallest budget that works."""
    disk_bytes: int
    fits: bool
    note: str = ""


@dataclass(frozen=True)
class LoadingWay:
    """One way to load tokens for training."""

    way: str
    memory_bytes: int
    note: str


def stage_needs(
    data: DataFacts,
    choice: Choice,
    machine: Machine,
    *,
    near_copies: bool = False,
    item_files: Sequence[str] = (),
) -> list[StageNeed]:
    """Return the needs of every stage this plan runs, in order.

    `item_files` are evaluation items that `prepare` removes from the text (--decontaminate).
    """
    budget = machine.budget_bytes
    needs: list[StageNeed] = []
    text = data.text_bytes
    if text is not None and data.learns_tokenizer:
        peak = tokenizer_footprint.planned_peak_bytes(
            text,
            vocab_size=data.vocab_size,
            num_workers=machine.cores,
            distinct_bytes=data.distinct_bytes,
        )
        least = smallest_budget_bytes(machine.cores)
        note = "counts and merges go through files: slower, same result" if peak > budget else ""
        disk = max(0, peak - budget)
        needs.append(_need("train-tokenizer", peak, least, disk, machine, note))
    if text is not None:
        peak = resources.planned_bytes(
            text,
            num_workers=machine.cores,
            budget_bytes=budget,
            line_bytes=data.line_bytes or resources.LINE_BYTES,
            vocab_size=data.vocab_size,
        )
        peak += planned_item_bytes(item_files)
        least = resources.smallest_budget_bytes() + planned_item_bytes(item_files)
        least = max(least, smallest_item_budget(item_files))
        table = resources.planned_table_bytes(num_workers=machine.cores, budget_bytes=budget)
        disk = resources.planned_disk_bytes(
            text,
            one_pass_bytes=table,
            bytes_per_token=data.bytes_per_token,
            token_bytes=data.token_bytes,
            near_copies=near_copies,
            keeps_text=bool(item_files),
        )
        tokens = int(text / data.bytes_per_token)
        note = f"the dataset itself has {format_size(tokens * data.token_bytes)}"
        if item_files:
            items = format_size(planned_item_bytes(item_files))
            note += f"; n-grams of evaluation items take about {items}, a third of it at most"
        needs.append(_need("prepare", peak, least, disk, machine, note))
    footprint = choice.footprint
    loading = _LOADING_PROGRAM_BYTES + footprint.batches
    note = "by itself, whatever the size; training includes it"
    needs.append(StageNeed("load", loading, loading, 0, loading <= budget, note))
    on_host = footprint.host_bytes if machine.has_gpu else footprint.total_bytes
    least = footprint.host_bytes if machine.has_gpu else footprint.budget_bytes
    kept = choice.settings.saving.keep_checkpoints + 1
    disk = kept * footprint.checkpoint_bytes + 4 * count_parameters(choice.config)  # the best one
    disk += footprint.offloaded.file if footprint.offloaded else 0
    needs.append(StageNeed("train", on_host, least, disk, choice.fits and has_disk(disk, machine)))
    return needs


def _need(stage: str, peak: int, least: int, disk: int, machine: Machine, note: str) -> StageNeed:
    fits = least <= machine.budget_bytes and has_disk(disk, machine)
    return StageNeed(stage, min(peak, machine.budget_bytes), least, disk, fits, note)


def has_disk(wanted: int, machine: Machine) -> bool:
    """True if the machine has that much disk free, as far as is known."""
    return machine.free_disk_bytes is None or wanted <= machine.free_disk_bytes


def loading_ways(
    num_tokens: int, *, bytes_per_token: float, token_bytes: int, rows: int, seq_len: int
) -> list[LoadingWay]:
    """Compare the ways to hold a dataset, at any size.

    >>> ways = loading_ways(500_000_000, bytes_per_token=4.6, token_bytes=2, rows=32, seq_len=256)
    >>> [way.memory_bytes // 10**6 for way in ways[:3]]
    [26300, 1000, 0]
    """
    text = int(num_tokens * bytes_per_token)
    batch = batches.planned_bytes(batch_size=rows, seq_len=seq_len)
    stream = planned_bytes(seq_len=seq_len, shuffle_buffer_size=_SHUFFLE_BUFFER)
    return [
        LoadingWay(
            "all in memory",
            text + num_tokens * (_LIST_BYTES + _INT64_BYTES),
            "text, list of ids and int64 tensor, as one text file read whole",
        ),
        LoadingWay(
            "memory-mapped",
            num_tokens * token_bytes + batch,
            "once every page was touched; the system takes pages back when others need them",
        ),
        LoadingWay("shards (lowtide)", batch, "only batches, read from the files: --dataset-dir"),
        LoadingWay(
            "streaming (lowtide)",
            stream + batch,
            f"text tokenized on the fly, shuffled in a buffer of {_SHUFFLE_BUFFER:,} windows: "
            "--dataset-id",
        ),
    ]
