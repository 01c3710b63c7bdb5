"""Check the output folder of `prepare`: empty, the same dataset, another one, or unknown shards.

In:      the settings of a preparation, and the folder they name
Out:     a PrepareResult if the folder has the dataset of the same command; else a UsageError
Memory:  as reading metadata: a row for each shard
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset import layout
from lowtide.dataset.finished import require_whole
from lowtide.dataset.finishing import find_other_setting, plan_settings
from lowtide.dataset.identity import drop_copies, find_other_source
from lowtide.dataset.resources import Inputs, plan_shares
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.storeddatasets import load_any_info
from lowtide.dataset.workfolder import has_plan, remove_work
from lowtide.errors import UsageError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME, WORK_NAME
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored

__all__ = [
    "PrepareResult",
    "is_finished",
    "is_tokenizer_of",
    "refuse_strangers",
    "require_same",
]


@shown_in_notebooks()
@dataclass(frozen=True)
class PrepareResult:
    """The result of a preparation or of a dry run."""

    dataset: layout.DatasetInfo | None
    """None after a dry run; `info` is the same, and never None."""
    report: dict[str, Any]
    """What was read, and what was removed and why."""
    notices: list[str]
    seconds: float
    peak_bytes: int
    budget_bytes: int
    was_there: bool = False
    """True if the dataset existed already, made from the same inputs with the same settings."""

    @property
    def info(self) -> layout.DatasetInfo:
        """The dataset that was made."""
        if self.dataset is None:
            raise UsageError(
                "a dry run makes no dataset", next_step="leave dry_run out, or ask for `dataset`"
            )
        return self.dataset


def require_same(
    settings: PrepareSettings, reading: ReadingSettings | None = None
) -> PrepareResult:
    """Return the existing dataset if this same command would make it; else raise an error.

    `reading` is given by a worker that took part in making it, so that the files just written are
    not checked again by every worker.
    """
    root = settings.out_dir
    info = load_any_info(root)
    metadata = info.metadata
    difference = _find_difference(settings, metadata, reading)
    if difference is not None:
        raise UsageError(
            f"there is a finished dataset here already, and {difference}",
            path=root,
            next_step="choose another --out-dir, or add to it with lowtide append",
        )
    if reading is None:
        require_whole(info)
    if not is_stored(root) and (root / WORK_NAME).is_dir() and not has_plan(root, verb="append"):
        remove_work(root)  # killed while its work files were removed
    report, notices = metadata["cleaning"], metadata["notices"]
    return PrepareResult(info, report, notices, 0.0, 0, 0, was_there=True)


def _find_difference(
    settings: PrepareSettings, metadata: dict[str, Any], reading: ReadingSettings | None
) -> str | None:
    """The first setting or input that differs from a finished dataset's; None if there is none."""
    before = metadata.get("settings")
    if not isinstance(before, dict) or "sources" not in metadata:
        return "nothing says what it was made of"
    other = find_other_setting(before, plan_settings(settings))
    if other is not None:
        return "it was made with {} {}, now it is {}".format(*other)
    inputs = expand_inputs(settings.input_files)
    if reading is None:
        budget = MemoryBudget.from_setting(settings.memory)
        shares = plan_shares(settings, budget, Inputs.of(inputs, settings))
        reading = shares.reading(settings, budget.total_bytes)
    if settings.dedup:
        inputs = drop_copies(inputs, reading, on_notice=lambda _: None)
    appended = sum(len(event["input_files"]) for event in metadata.get("appended", []))
    rows = metadata["sources"]
    return find_other_source(inputs, rows[: len(rows) - appended], reading)


def is_finished(root: Path) -> bool:
    return (root / METADATA_NAME).exists()


def refuse_strangers(settings: PrepareSettings) -> None:
    """Refuse a folder with shards or a tokenizer, but neither a dataset nor unfinished work."""
    root = settings.out_dir
    if (root / WORK_NAME).exists():
        return
    strangers = [path.name for split in layout.SPLITS for path in (root / split).glob("*.bin")]
    if (root / TOKENIZER_NAME).exists() and not is_tokenizer_of(settings.tokenization, root):
        strangers.append(TOKENIZER_NAME)
    if strangers:
        raise UsageError(
            f"{strangers[0]} is here already, but no dataset that it belongs to",
            path=root,
            next_step="choose another --out-dir",
        )


def is_tokenizer_of(named: str | None, root: Path) -> bool:
    """True if the named tokenizer is the one in `root`, which is then kept."""
    return named is not None and Path(named).absolute() in (
        root.absolute(),
        (root / TOKENIZER_NAME).absolute(),
    )
