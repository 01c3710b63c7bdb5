"""Read a dataset before an append: its settings, the new inputs, leftovers of a killed append.

In:      a dataset, and the settings of `append`
Out:     the settings of its preparation, with the new inputs; the inputs not yet in the dataset
Memory:  a row for each shard and each input
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowtide.corpus.evaluations import checksum_items, find_item_files
from lowtide.corpus.inputs import InputList
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset import layout
from lowtide.dataset.addedtext import log_names
from lowtide.dataset.finished import (
    require_counted_documents,
    require_kept_hashes,
    require_written_settings,
)
from lowtide.dataset.finishing import find_other_setting, plan_models
from lowtide.dataset.identity import drop_copies, drop_known
from lowtide.dataset.seen import seen_path
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.tokenfiles.shards import documents_path
from lowtide.dataset.workfolder import is_half_removed, read_facts, remove_work
from lowtide.errors import LowtideError, UsageError
from lowtide.filenames import WORK_NAME
from lowtide.notebooks import shown_in_notebooks
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings
from lowtide.stores.paths import is_stored

__all__ = [
    "NOTES_NAME",
    "AppendResult",
    "find_new",
    "finish_cleaning_up",
    "give_up",
    "stored_settings",
]

NOTES_NAME = "shards"
"""Folder with the rows of finished shards."""


@shown_in_notebooks()
@dataclass(frozen=True)
class AppendResult:
    """The result of an append."""

    info: layout.DatasetInfo
    report: dict[str, Any]
    notices: list[str]
    added_tokens: int
    added_shards: int
    was_there: bool = False
    """True if every input was in the dataset already, and nothing was changed."""


def give_up(root: Path) -> None:
    """Remove shards that an interrupted append moved in before it wrote its metadata."""
    facts = read_facts(root, verb="append")
    described = layout.read_metadata(root)
    if facts is None or _is_last_event(described, facts):
        return
    # By the records of that command, so that shards that the user moved in since then are kept.
    for note in sorted((root / WORK_NAME / NOTES_NAME).glob("*.shard")):
        path = root / str(open_work_file(note).header["file"])
        for file in (path, documents_path(path)):
            file.unlink(missing_ok=True)
    logs = [root / name for name in log_names(1 + len(described.get("appended", [])))]
    for file in (*logs, seen_path(root, len(described.get("seen", [])))):
        file.unlink(missing_ok=True)


def _is_last_event(metadata: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """True if the command of these facts wrote its metadata."""
    events = metadata.get("appended", [])
    return len(events) > facts["num_appended"]


def finish_cleaning_up(root: Path) -> None:
    """Finish the cleanup of a command that was killed after it wrote its metadata."""
    facts = read_facts(root, verb="append")
    is_over = facts is not None and _is_last_event(layout.read_metadata(root), facts)
    if is_over or is_half_removed(root):
        remove_work(root)


def stored_settings(info: layout.DatasetInfo, settings: AppendSettings) -> PrepareSettings:
    """Return the settings the dataset was prepared with, for other inputs and resources."""
    require_written_settings(info)
    require_kept_hashes(info.root, info.metadata)
    require_counted_documents(info)
    known: dict[str, Any] = {
        key: value
        for key, value in info.metadata.get("settings", {}).items()
        if key in PrepareSettings.__dataclass_fields__
    }
    known.setdefault("tokens_per_shard", info.metadata.get("tokens_per_shard", 10_000_000))
    known.update(
        decontaminate=_find_items(info, known.get("decontaminate") or ()),
        input_files=settings.input_files,
        out_dir=info.root,
        engine="files" if is_stored(info.root) else "threads",
        skip_bad_inputs=settings.skip_bad_inputs,
        num_workers=settings.num_workers,
        memory=settings.memory,
        text_field=settings.text_field,
    )
    stored = replace(build_settings(PrepareSettings, known), block_bytes=settings.block_bytes)
    before = info.metadata.get("settings", {})
    models: dict[str, Any] = {**plan_models(stored)}
    models |= {name: getattr(stored, name) for name in ("language_model", "score", "step")}
    other = find_other_setting({name: before.get(name) for name in models}, models)
    if other is not None:
        raise UsageError(
            "the dataset was made with {} {}, now it is {}".format(*other),
            path=info.root,
            next_step="put the files back that it was made with",
        )
    return stored


def _find_items(info: layout.DatasetInfo, typed: Sequence[str]) -> tuple[str, ...]:
    """Find the files of evaluation items that the dataset was made with.

    First by their absolute paths at that time, then by the names as typed, from the current folder.
    """
    if not typed:
        return ()
    stored = tuple(info.metadata.get("decontamination", {}).get("files", ()))
    wanted = info.metadata["settings"].get("decontaminate_checksum")
    missing = [path for path in stored if not Path(path).is_file()]
    if stored and not missing and checksum_items(stored) == wanted:
        return stored
    with contextlib.suppress(LowtideError):  # of other names: the error lists the known ones
        found = find_item_files(typed)
        if checksum_items(found) == wanted:
            return found
    where = missing or list(stored) or list(typed)
    raise UsageError(
        f"the dataset was made with --decontaminate {' '.join(typed)}: {', '.join(where)} "
        + ("is not there" if missing or not stored else "is there with other content"),
        path=info.root,
        next_step="put back, with the content they had: " + ", ".join(where),
    )


def find_new(
    info: layout.DatasetInfo,
    inputs: InputList,
    stored: PrepareSettings,
    reading: ReadingSettings,
    on_notice: Callable[[str], None],
) -> InputList:
    """Inputs that are not in the dataset yet, numbered after those in it."""
    if stored.dedup:
        inputs = drop_copies(inputs, reading, on_notice=on_notice)
    rows = info.metadata.get("sources", [])
    base = len(info.metadata.get("input_files", []))
    return drop_known(inputs, rows, reading, first_index=base, on_notice=on_notice)
