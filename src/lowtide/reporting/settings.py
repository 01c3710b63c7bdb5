"""Settings of `lowtide report`; each field's docstring is its help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used, require

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = ["ReportSettings"]


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What to look at, and where the page goes."""

    target: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run (its name or folder), dataset, or tokenizer (folder, file, or gpt2); several runs, a
    folder of runs, or several datasets, to compare them."""
    out: Path | None = None
    """Where the page goes; default: report.html in the folder; of several runs
    comparison.html, of several datasets datasets.html."""
    sample: tuple[str, ...] = ()
    """Of a tokenizer: files, folders or globs of text; each file is measured as one source."""
    text_field: str = "text"
    """The field of jsonl samples, the column of parquet samples, that holds the text."""
    watch: bool = False
    """Serve the page on this machine and keep it live until Ctrl-C; nothing is written."""
    port: int = 0
    """Port of --watch; 0 takes a free one."""
    interval: float = 2.0
    """Seconds between looks of a live page."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept, for a run given by its name."""
    memory: str | None = None
    """Budget of resident memory, such as 128MiB; half of what is available if not given."""

    def __post_init__(self) -> None:
        if isinstance(self.target, str):  # one of them, from Python
            object.__setattr__(self, "target", (self.target,))
        require(bool(self.target), "target", "", "a run, a dataset or a tokenizer")
        require(0 <= self.port <= 65535, "port", self.port, "0 to 65535")
        require(self.interval >= 0.1, "interval", self.interval, "at least 0.1 seconds")
        require(not (self.watch and self.out), "out", self.out, "no --watch beside it")
