"""What `append` finds in a dataset: how it was prepared, which inputs are new, what a kill left.

In:      a dataset, and the settings of `append`
Out:     the settings of its preparation, for other inputs; the inputs it was not made of yet
Memory:  a row for each shard and each input
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.corpus.inputs import InputList
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset import layout
from lowtide.dataset.finishing import find_other_setting, plan_models
from lowtide.dataset.identity import drop_copies, drop_known
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.workfolder import WORK_NAME, read_facts, remove_work
from lowtide.errors import UsageError
from lowtide.notebooks import shown_in_notebooks
from lowtide.settings import build_settings

__all__ = [
    "NOTES_NAME",
    "AppendResult",
    "find_new",
    "finish_cleaning_up",
    "give_up",
    "stored_settings",
]

NOTES_NAME = "shards"
"""Where rows of finished shards are noted."""


@shown_in_notebooks()
@dataclass(frozen=True)
class AppendResult:
    """What was added."""

    info: layout.DatasetInfo
    report: dict[str, Any]
    notices: list[str]
    added_tokens: int
    added_shards: int
    was_there: bool = False
    """True if every input was in the dataset already, and nothing was touched."""


def give_up(root: Path) -> None:
    """Take out shards that an interrupted command has moved in but not described."""
    facts = read_facts(root, verb="append")
    described = layout.read_metadata(root)
    if facts is None or _is_last_event(described, facts):
        return
    # By the notes of that command: a shard that somebody moved in meanwhile is not its own.
    for note in sorted((root / WORK_NAME / NOTES_NAME).glob("*.shard")):
        path = root / str(open_work_file(note).header["file"])
        for file in (path, layout.documents_path(path)):
            file.unlink(missing_ok=True)


def _is_last_event(metadata: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether the command these facts are of wrote its metadata."""
    events = metadata.get("appended", [])
    return len(events) > facts["num_appended"]


def finish_cleaning_up(info: layout.DatasetInfo) -> AppendResult | None:
    """End a command that was killed after its last write, while it removed its work files."""
    facts = read_facts(info.root, verb="append")
    if facts is None or not _is_last_event(info.metadata, facts):
        return None
    remove_work(info.root)
    event = info.metadata["appended"][-1]
    numbers = [shard.path for shards in info.shards.values() for shard in shards]
    count = sum((layout.shard_number(path) or 0) >= event["first_shard"] for path in numbers)
    return AppendResult(info, event["cleaning"], event["notices"], event["tokens"], count)


def stored_settings(info: layout.DatasetInfo, settings: AppendSettings) -> PrepareSettings:
    """Return the settings the dataset was prepared with, for other inputs and resources."""
    known: dict[str, Any] = {
        key: value
        for key, value in info.metadata.get("settings", {}).items()
        if key in PrepareSettings.__dataclass_fields__
    }
    known.setdefault("tokens_per_shard", info.metadata.get("tokens_per_shard", 10_000_000))
    known.update(
        input_files=settings.input_files,
        out_dir=info.root,
        skip_bad_inputs=settings.skip_bad_inputs,
        num_workers=settings.num_workers,
        memory=settings.memory,
        text_field=settings.text_field,
    )
    if known.get("decontaminate"):
        raise UsageError(
            "this dataset was prepared with --decontaminate, which looks at all documents at once",
            path=info.root,
            next_step="lowtide prepare all of it anew, with the new files after the old ones",
        )
    stored = build_settings(PrepareSettings, known)
    if stored.near is not None:
        raise UsageError(
            f"this dataset was prepared with --near-dedup {stored.near_dedup}, and keeps no text "
            "that new documents could be compared with",
            path=info.root,
            next_step="lowtide prepare all of it anew, with the new files after the old ones",
        )
    before = info.metadata.get("settings", {})
    models = plan_models(stored)
    models |= {name: getattr(stored, name) for name in ("language_model", "score", "step")}
    other = find_other_setting({name: before.get(name) for name in models}, models)
    if other is not None:
        raise UsageError(
            "the dataset was made with {} {}, now it is {}".format(*other),
            path=info.root,
            next_step="put the model back that it was made with",
        )
    return stored


def find_new(
    info: layout.DatasetInfo,
    inputs: InputList,
    stored: PrepareSettings,
    reading: ReadingSettings,
    on_notice: Callable[[str], None],
) -> InputList:
    """Inputs the dataset was not made of yet, numbered after those it was."""
    if stored.dedup:
        inputs = drop_copies(inputs, reading, on_notice=on_notice)
    rows = info.metadata.get("sources", [])
    base = len(info.metadata.get("input_files", []))
    return drop_known(inputs, rows, reading, first_index=base, on_notice=on_notice)
