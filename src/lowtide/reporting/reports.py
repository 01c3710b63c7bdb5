"""Make the page of a run, a dataset or a tokenizer: detect which it is, read it, write HTML.

In:      ReportSettings
Out:     one HTML file
Memory:  that of the reader: curves and counts of fixed size
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, Protocol

from lowtide.errors import DataError, UsageError
from lowtide.filenames import METADATA_NAME, METRICS_NAME, SETTINGS_NAME
from lowtide.files import hold_lock, write_bytes
from lowtide.freenames import require_own_file
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.reporting.comparisons import ComparisonReader, runs_below
from lowtide.reporting.datasetcomparisons import DatasetComparisonReader
from lowtide.reporting.datasets import DatasetReader
from lowtide.reporting.jobs import JobReader
from lowtide.reporting.pages import GENERATOR, is_same_page, render_page
from lowtide.reporting.runs import RunReader
from lowtide.reporting.settings import ReportSettings
from lowtide.reporting.tokenizers import TokenizerReader
from lowtide.stores.urls import is_store_url
from lowtide.tokenizer.inspection import is_tokenizer
from lowtide.tokenizer.needs import tokenizer_needs

__all__ = ["PageReader", "ReportResult", "open_reader", "report"]


_PAGE_BYTES = 16 << 20
_TOKENIZER_BYTES = 40 << 20  # one of 50,000 tokens, lists of them, a batch of text and its ids
_RUN_BYTES = 2 << 20  # for each further run: its curves and samples, in memory and in the page


class PageReader(Protocol):
    """Reads a target, later only what was added, and returns the data of its page."""

    def read(self) -> bool:
        """Read new data; True if there was any."""
        ...

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        ...


@dataclass(frozen=True)
class ReportResult:
    """The page that was made."""

    path: Path
    kind: str
    num_bytes: int
    was_there: bool = False
    """True if the same page existed already, and was not written again."""

    def _repr_html_(self) -> str:
        # In an iframe, so that the styles of the notebook and of the page stay separate.
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width:100%;height:640px;border:1px solid #8884"
        allowed = "allow-scripts allow-downloads"
        return f'<iframe sandbox="{allowed}" style="{style}" srcdoc="{page}"></iframe>'


@takes_keywords(ReportSettings)
def report(settings: ReportSettings) -> ReportResult:
    """Make a page to look at of a run, a dataset or a tokenizer, or one that compares runs.

    An earlier page of lowtide is replaced, any other file is not.
    """
    budget = MemoryBudget.from_setting(settings.memory)
    shares = {"curves and page": _PAGE_BYTES + len(_runs_of(settings)) * _RUN_BYTES}
    first = _find(settings, settings.target[0])
    if _is_tokenizer(first):
        shares["tokenizer and sample"] = _TOKENIZER_BYTES + tokenizer_needs(first).table_bytes
    budget.require(shares)
    with Progress("report", budget_bytes=budget.total_bytes):
        return _make_report(settings)


def _make_report(settings: ReportSettings) -> ReportResult:
    reader = open_reader(settings)
    path = settings.out or _default_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(path):
        reader.read()
        data = reader.page()
        require_own_file(path, GENERATOR, what="page", next_step="name another --out")
        page = render_page(data).encode("utf-8", "backslashreplace")
        is_as_long = path.is_file() and path.stat().st_size == len(page)
        was_there = is_as_long and is_same_page(path.read_bytes(), page)
        if not was_there:
            write_bytes(path, page)
    return ReportResult(path, data["kind"], len(page), was_there)


def _default_path(settings: ReportSettings) -> Path:
    first, *others = settings.target
    if others:
        return Path("datasets.html" if _datasets_of(settings) else "comparison.html")
    folder = _find(settings, first)
    if folder.is_dir():
        return folder / "report.html"
    return Path(f"{folder.stem}-report.html")


def _find(settings: ReportSettings, target: str) -> Path:
    """Return a target's path; a bare name may be a run's."""
    given = Path(target)
    in_runs = settings.checkpoints_dir / target
    return in_runs if not given.exists() and in_runs.is_dir() else given


def _metrics_path(path: Path) -> Path:
    """The path of a job's metrics: in its folder, or hidden beside its output file."""
    if path.suffix == ".npy":
        return path.with_name(f".{path.name}.{METRICS_NAME}")
    return path / METRICS_NAME


def _is_run(path: Path) -> bool:
    return (path / SETTINGS_NAME).is_file() or (path / "steps").is_dir()


def _is_tokenizer(path: Path) -> bool:
    return is_tokenizer(path) and path.suffix != ".npy" and not _is_run(path)


def _runs_of(settings: ReportSettings) -> list[Path]:
    """The runs to compare; empty if the page is about one target."""
    paths = [_find(settings, target) for target in settings.target]
    if _datasets_of(settings):
        return []
    if len(paths) == 1:
        is_other = _is_run(paths[0]) or (paths[0] / METADATA_NAME).is_file()
        return [] if is_other else runs_below(paths[0])
    for path in paths:
        if not _is_run(path):
            raise DataError(
                "several things are compared if all of them are runs, or all of them datasets, and "
                "this is not a run",
                path=path,
                next_step="name runs or datasets only, or make a page of each by itself",
            )
    return paths


def _datasets_of(settings: ReportSettings) -> list[Path]:
    """The datasets to compare; empty for other targets."""
    paths = [_find(settings, target) for target in settings.target]
    are_datasets = len(paths) > 1 and all((path / METADATA_NAME).is_file() for path in paths)
    return paths if are_datasets else []


def open_reader(settings: ReportSettings) -> PageReader:
    """Find out what the target is, and open it."""
    if settings.sample and not _is_tokenizer(_find(settings, settings.target[0])):
        raise UsageError(
            f"--sample {' '.join(settings.sample)} is for a tokenizer, and this is none",
            path=_find(settings, settings.target[0]),
            next_step="leave it out, or name a tokenizer's folder",
        )
    if datasets := _datasets_of(settings):
        return DatasetComparisonReader(datasets)
    if runs := _runs_of(settings):
        return ComparisonReader(runs)
    path = _find(settings, settings.target[0])
    if _is_run(path):
        return RunReader(path)
    if (path / METADATA_NAME).is_file():
        return DatasetReader(path)
    metrics_path = _metrics_path(path)
    if _is_tokenizer(path):
        return TokenizerReader(path, samples=settings.sample, text_field=settings.text_field)
    if metrics_path.is_file():
        return JobReader(metrics_path, title=path.resolve().name)
    if is_store_url(settings.target[0]):
        raise UsageError(
            f"{settings.target[0]}: a page is made of files of this machine",
            next_step=f"lowtide inspect {settings.target[0]} reads a dataset there",
        )
    if not path.exists():
        raise DataError(
            f"{settings.target[0]!r} is neither a path nor a run in {settings.checkpoints_dir}",
            path=path,
            next_step="name a run, a dataset's folder or a tokenizer's",
        )
    raise DataError(
        "this is not a run, dataset or tokenizer of lowtide",
        path=path,
        next_step="name a folder that lowtide train, prepare or train-tokenizer made",
    )
