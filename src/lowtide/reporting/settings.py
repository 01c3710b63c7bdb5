"""Settings of `lowtide report`; each field's docstring is its help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lowtide.errors import UsageError
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used, require

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = ["ReportSettings"]


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What to report on, and where the page is written."""

    target: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run (its name or folder), dataset, or tokenizer (folder, file, or gpt2); several runs, a
    folder of runs, or several datasets, to compare them."""
    out: Path | None = None
    """Path of the page; default: report.html in the target's folder, comparison.html for several
    runs, datasets.html for several datasets."""
    sample: tuple[str, ...] = ()
    """For a tokenizer: files, folders or globs of text to measure it on, each file separately."""
    text_field: str = "text"
    """Field of jsonl samples, or column of parquet samples, that holds the text."""
    watch: bool = False
    """Serve the page over HTTP on this machine, updated live until Ctrl-C; no file is written."""
    port: int = 0
    """Port of --watch; 0 chooses a free one."""
    interval: float = 2.0
    """Seconds between updates of the live page."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept, for a run given by its name."""
    memory: str | None = None
    """Budget of resident memory, such as 128MiB; default: half of the available memory."""

    def __post_init__(self) -> None:
        if isinstance(self.target, str):  # one of them, from Python
            object.__setattr__(self, "target", (self.target,))
        if not self.target:
            raise UsageError(
                "nothing to report on is given",
                next_step="name a run, a dataset's folder or a tokenizer: lowtide report NAME",
            )
        require(0 <= self.port <= 65535, "port", self.port, "0 to 65535")
        require(self.interval >= 0.1, "interval", self.interval, "at least 0.1 seconds")
        for name in ("port", "interval"):
            value = getattr(self, name)
            used = self.watch or value == getattr(type(self), name)
            require(used, name, value, "--watch beside it")
        fields = self.text_field == type(self).text_field or bool(self.sample)
        require(fields, "text_field", self.text_field, "--sample beside it")
        require(not (self.watch and self.out), "out", self.out, "no --watch beside it")
