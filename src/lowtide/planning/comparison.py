"""Compare the memory of jobs done in the usual and in the memory-saving way, on this machine.

In:      CompareSettings: which jobs
Out:     Pair rows: peak of the usual way, peak of the memory-saving way; one table, one picture
Memory:  each way runs in a separate process; the usual ones hold everything, on purpose
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lowtide.errors import LowtideError, UsageError
from lowtide.files import atomic_file
from lowtide.freenames import require_own_file
from lowtide.keywords import takes_keywords
from lowtide.loader.sources import find_tokens
from lowtide.memory import format_size
from lowtide.model.sizing import shape_for_parameters
from lowtide.notebooks import ResultList, shown_in_notebooks
from lowtide.packages import has_package, require_package
from lowtide.planning.picture import draw_bars
from lowtide.planning.settings import parse_count
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_folder
from lowtide.settings import settings_as_json
from lowtide.tables import table_lines
from lowtide.tokenizer.comparison import CompareMemorySettings, Comparison, compare_tokenizers

__all__ = ["CompareSettings", "Pair", "compare_memory", "describe_pairs"]

What = Literal["tokenizer", "loading", "optimizer", "checkpointing"]
_NEEDED = {"optimizer": ("torch", "bitsandbytes"), "checkpointing": ("torch",)}  # packages

_VOCABULARY = 4096
_NUM_BATCHES = 50
_TITLE = "peak memory, measured"


@dataclass(frozen=True)
class CompareSettings(CompareMemorySettings):
    """The same job in two ways; what to compare."""

    input: tuple[str, ...] = ()
    """Text for the comparison of tokenizers: files (plain, .gz, .zst, .xz, .bz2), folders or
    globs."""
    what: tuple[What, ...] = ()
    """Comparisons to run; tokenizer if --input is given, else the three others."""
    dataset_dir: Path | None = None
    """Tokens for the loading comparison: a dataset, .npy or .bin; synthetic if not given."""
    tokens: str | int = "10M"
    """Number of synthetic tokens."""
    size: str | int = "20M"
    """Parameters of the model in the training comparisons."""
    picture: Path | None = None
    """Write a bar chart of the peaks (SVG)."""

    def __post_init__(self) -> None:
        parse_count(self.tokens, "tokens")
        parse_count(self.size, "size")
        if "tokenizer" in self.pairs and not self.input:
            raise UsageError("no input files", next_step="--input FILES")
        for what in self.what:
            for package in _NEEDED.get(what, ()):
                require_package(package, f"--what {what}")

    @property
    def pairs(self) -> tuple[What, ...]:
        """What is compared."""
        if self.what:
            return self.what
        if self.input:
            return ("tokenizer",)
        pairs: tuple[What, ...] = ("loading", "optimizer", "checkpointing")
        return tuple(what for what in pairs if all(map(has_package, _NEEDED.get(what, ()))))


@shown_in_notebooks()
@dataclass(frozen=True)
class Pair:
    """Peaks of one job in two ways."""

    what: str
    ordinary: str
    ordinary_bytes: int
    sparing: str
    sparing_bytes: int
    details: str = ""
    """A remark to print, if there is one."""


@takes_keywords(CompareSettings)
def compare_memory(settings: CompareSettings) -> list[Pair]:
    """Do jobs the usual way and the memory-saving way, and return the peak memory of both.

    Everything is measured in separate processes, one after another.
    """
    measure: dict[What, Callable[[CompareSettings], Pair]] = {
        "tokenizer": _compare_tokenizers,
        "loading": _compare_loading,
        "optimizer": _compare_optimizers,
        "checkpointing": _compare_checkpointing,
    }
    if settings.picture is not None:
        require_own_file(
            settings.picture, _TITLE, what="picture", next_step="name another --picture"
        )
    pairs: list[Pair] = ResultList()
    with (
        Progress("compare-memory") as progress,
        progress.phase("measure", total=len(settings.pairs), unit="pairs") as phase,
    ):
        for what in settings.pairs:
            pairs.append(measure[what](settings))
            phase.advance()
    if settings.picture is not None:
        groups = [
            (
                pair.what,
                [(pair.ordinary, pair.ordinary_bytes), (pair.sparing, pair.sparing_bytes)],
            )
            for pair in pairs
        ]
        with atomic_file(settings.picture) as file:
            file.write(draw_bars(_TITLE, groups).encode())
    return pairs


def describe_pairs(pairs: list[Pair]) -> str:
    """Return all pairs as one table."""
    rows = [("what", "way", "peak memory", "")]
    for pair in pairs:
        ratio = pair.ordinary_bytes / max(pair.sparing_bytes, 1)
        rows.append((pair.what, pair.ordinary, format_size(pair.ordinary_bytes), ""))
        change = f"{100 * abs(1 - 1 / ratio):.0f} % {'less' if ratio >= 1 else 'more'}"
        rows.append(("", pair.sparing, format_size(pair.sparing_bytes), change))
    lines = table_lines(rows, align="<<><")
    return "\n".join([*lines, *(pair.details for pair in pairs if pair.details)])


def _compare_tokenizers(settings: CompareSettings) -> Pair:
    shared = {field.name for field in dataclasses.fields(CompareMemorySettings)}
    options = {name: getattr(settings, name) for name in shared}
    found: Comparison = compare_tokenizers(CompareMemorySettings(**options))
    return Pair(
        "tokenizer",
        found.ordinary.name,
        found.ordinary.peak_bytes,
        found.lowtide.name,
        found.lowtide.peak_bytes,
        details=str(found),
    )


def _compare_loading(settings: CompareSettings) -> Pair:
    with scratch_folder("compare") as folder:
        path = settings.dataset_dir or _make_up_tokens(
            folder / "ids.bin", parse_count(settings.tokens)
        )
        count = find_tokens(path, split="all").num_tokens
        ways = {
            way: _run(["-m", __name__, way, str(path)], "")["peak_bytes"]
            for way in ("memory", "shards")
        }
    return Pair(
        f"loading {count:,} tokens",
        "list and int64 array in memory",
        ways["memory"],
        "lowtide's loader",
        ways["shards"],
    )


def _make_up_tokens(path: Path, count: int) -> Path:
    random, chunk = np.random.default_rng(0), 1 << 20
    with path.open("wb") as file:
        for start in range(0, count, chunk):
            ids = random.integers(_VOCABULARY, size=min(chunk, count - start))
            file.write(ids.astype("<u2").tobytes())
    return path


def _compare_optimizers(settings: CompareSettings) -> Pair:
    options = {"seq_len": 64, "batch_size": 1, "optimizer": "adamw"}
    return Pair(
        f"optimizer, {settings.size} parameters",
        "AdamW",
        _training_peak(settings, options),
        "AdamW in 8 bits",
        _training_peak(settings, {**options, "use_8bit_optimizer": True}),
    )


def _compare_checkpointing(settings: CompareSettings) -> Pair:
    options = {"seq_len": 256, "batch_size": 8, "optimizer": "adamw"}
    return Pair(
        f"activations, {settings.size} parameters",
        "kept",
        _training_peak(settings, options),
        "computed again",
        _training_peak(settings, {**options, "activation_checkpointing": True}),
    )


def _training_peak(settings: CompareSettings, options: dict[str, Any]) -> int:
    config = shape_for_parameters(
        parse_count(settings.size), vocab_size=_VOCABULARY, context_length=options["seq_len"]
    )
    request = {
        "config": settings_as_json(config),
        "settings": {**options, "device": "cpu"},
        "seconds": 0,
        "all_rows": True,
    }
    return _run(["-m", "lowtide.training.trial"], json.dumps(request))["peak_bytes"]


def _run(words: list[str], request: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *words], input=request, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise LowtideError(f"a measurement failed: {lines[-1] if lines else done.returncode}")
    return json.loads(done.stdout)


# The functions below run in a separate process.


def _load_everything(path: Path) -> None:
    """Load like a naive script: all ids as a list, then as one int64 array; batches from that."""
    from lowtide.loader.windows import TokenDataset

    data = TokenDataset(path, split="all", seq_len=256)
    ids: list[int] = []
    for first in range(0, len(data), 64):
        inputs, _ = data.get_batch(range(first, min(first + 64, len(data))))
        ids += inputs.ravel().tolist()
    tokens = np.array(ids, dtype=np.int64)
    random = np.random.default_rng(0)
    for _ in range(_NUM_BATCHES):
        starts = random.integers(len(tokens) - 256, size=32)
        np.stack([tokens[start : start + 256] for start in starts])


def _load_batches(path: Path) -> None:
    from lowtide.loader.batches import BatchLoader
    from lowtide.loader.windows import TokenDataset

    data = TokenDataset(path, split="all", seq_len=256)
    with BatchLoader(data, batch_size=32) as loader:
        for _ in range(_NUM_BATCHES):
            next(loader)


def _work(way: str, path: str) -> None:
    from lowtide.memory import process_peak_bytes

    {"memory": _load_everything, "shards": _load_batches}[way](Path(path))
    print(json.dumps({"peak_bytes": process_peak_bytes()}))


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2])
