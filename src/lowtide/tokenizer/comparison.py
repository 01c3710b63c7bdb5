"""Compare time and peak memory of training a tokenizer in the ordinary way and with lowtide.

In:      text files
Out:     a Comparison: seconds, peak of the whole process tree, and whether the merges are equal
Memory:  the ordinary way holds all text; each way runs in its own process
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

from lowtide.aliases import WORKER_FLAG
from lowtide.corpus.decompression import open_stream
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import ReadingSettings, block_documents, iter_blocks, plan_streams
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.files import read_json, write_json
from lowtide.keywords import takes_keywords
from lowtide.memory import PeakMeter, format_size
from lowtide.packages import has_package, import_package, require_package
from lowtide.progress import format_seconds
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_folder
from lowtide.settings import build_settings, settings_as_json
from lowtide.tables import table_lines
from lowtide.tokenizer.bytelevel import printable, unprintable
from lowtide.tokenizer.patterns import EXPRESSIONS, Pattern
from lowtide.tokenizer.vocabulary import END_OF_TEXT

__all__ = ["CompareMemorySettings", "Comparison", "WayResult", "compare_tokenizers"]

Way = Literal["tokenizers", "reference", "lowtide"]
Merges = list[tuple[bytes, bytes]]

_WAY_NAMES: dict[Way, str] = {
    "tokenizers": "Hugging Face tokenizers",
    "reference": "plain Python",
    "lowtide": "lowtide",
}


@dataclass(frozen=True)
class CompareMemorySettings:
    """The same tokenizer trained in two ways."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    input: tuple[str, ...]
    """Text, jsonl or parquet files (plain, .gz, .zst, .xz, .bz2), folders or globs."""
    vocab_size: int = 1000
    """Tokens in all: special tokens, 256 bytes, and merges."""
    num_workers: int | None = None
    """Threads of each of the two; all cores by default."""
    special_tokens: tuple[str, ...] = (END_OF_TEXT,)
    """Never split, never counted, never merged across."""
    pattern: Pattern = "gpt2"
    """How text is split before merging."""
    memory: str | None = None
    """lowtide's memory budget; the ordinary way has none."""
    ordinary: Literal["auto", "tokenizers", "reference"] = "auto"
    """The ordinary way: Hugging Face tokenizers if it is installed, else plain Python."""

    def __post_init__(self) -> None:
        if not self.input:
            raise UsageError("no input files", next_step="--input FILES")

    @property
    def ordinary_way(self) -> Way:
        """Which of the available ordinary ways is used."""
        if self.ordinary != "auto":
            way: Way = self.ordinary
        else:
            way = "tokenizers" if has_package("tokenizers") else "reference"
        needed = "tokenizers" if way == "tokenizers" else "regex"
        require_package(needed, f"comparing with {way}")
        return way


@dataclass(frozen=True)
class WayResult:
    """Time and memory of training in one way."""

    name: str
    seconds: float
    peak_bytes: int
    merges: Merges = dataclasses.field(repr=False)
    failure: str | None = None
    """The reason if there is no result: usually, out of memory."""


@dataclass(frozen=True)
class Comparison:
    """Both results."""

    ordinary: WayResult
    lowtide: WayResult

    @property
    def first_difference(self) -> int | None:
        """The index of the first merge that differs; None if all are equal."""
        ours, theirs = self.lowtide.merges, self.ordinary.merges
        if ours == theirs:
            return None
        pairs = zip(ours, theirs, strict=False)
        shorter = min(len(ours), len(theirs))
        return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)

    def __str__(self) -> str:
        cells = [("", "time", "peak memory", "")]
        cells += [
            (way.name, format_seconds(way.seconds), format_size(way.peak_bytes), way.failure or "")
            for way in (self.ordinary, self.lowtide)
        ]
        rows = table_lines(cells, align="<>><")
        if self.ordinary.failure or self.lowtide.failure:
            return "\n".join(rows)
        memory = self.ordinary.peak_bytes / max(self.lowtide.peak_bytes, 1)
        speed = self.ordinary.seconds / max(self.lowtide.seconds, 1e-9)
        rows.append(
            f"the ordinary way takes {memory:.1f} times the memory and {speed:.1f} the time"
        )
        place = self.first_difference
        if place is None:
            rows.append(f"both learned the same {len(self.lowtide.merges):,} merges")
        else:
            rows.append(f"the merges differ from number {place + 1} on")
        return "\n".join(rows)


@takes_keywords(CompareMemorySettings)
def compare_tokenizers(settings: CompareMemorySettings) -> Comparison:
    """Train in both ways, one after the other."""
    expand_inputs(settings.input)  # a missing file is refused before anything runs
    ordinary_way = settings.ordinary_way
    lowtide = _run_way("lowtide", settings)  # first, to report a budget that is too small at once
    return Comparison(ordinary=_run_way(ordinary_way, settings), lowtide=lowtide)


def _run_way(way: Way, settings: CompareMemorySettings) -> WayResult:
    name = _WAY_NAMES[way] + (f" {version('tokenizers')}" if way == "tokenizers" else "")
    with scratch_folder("compare") as folder:
        job, result = folder / "job.json", folder / "result.json"
        write_json(job, {"way": way, "settings": settings_as_json(settings)})
        environment = dict(os.environ, TOKENIZERS_PARALLELISM="true")
        if settings.num_workers is not None:
            environment["RAYON_NUM_THREADS"] = str(settings.num_workers)
        started = time.monotonic()
        # Standard error is inherited, because progress is shown there.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(job), str(result)], env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode > 0:
            raise LowtideError(
                read_json(result)["error"] if result.exists() else f"{name} failed, see above"
            )
        if process.returncode < 0:  # a killed process reports no peak; the kernel does
            failure = f"ended by signal {-process.returncode}, out of memory?"
            peak_bytes = usage.ru_maxrss * 1024
            return WayResult(name, time.monotonic() - started, peak_bytes, [], failure)
        data = read_json(result)
    merges = [(unprintable(left), unprintable(right)) for left, right in data["merges"]]
    return WayResult(name, data["seconds"], data["peak_bytes"], merges)


# The following functions run in a separate process.


def _work(job_path: Path, result_path: Path) -> int:
    job = read_json(job_path)
    settings = build_settings(CompareMemorySettings, job["settings"])
    train = {
        "tokenizers": _train_with_tokenizers,
        "reference": _train_by_reference,
        "lowtide": _train_with_lowtide,
    }[job["way"]]
    started = time.monotonic()
    try:
        with PeakMeter(whole_process=True) as meter:
            merges = train(settings)
    except LowtideError as error:
        write_json(result_path, {"error": str(error)})
        return 1
    rows = [[printable(left), printable(right)] for left, right in merges]
    seconds = time.monotonic() - started
    write_json(result_path, {"seconds": seconds, "peak_bytes": meter.peak_bytes, "merges": rows})
    return 0


def _train_with_lowtide(settings: CompareMemorySettings) -> Merges:
    from lowtide.tokenizer.training import train_tokenizer

    trained = train_tokenizer(
        input=list(settings.input),
        vocab_size=settings.vocab_size,
        special_tokens=settings.special_tokens,
        pattern=settings.pattern,
        num_workers=settings.num_workers,
        memory=settings.memory,
    )
    return trained.tokenizer.merges


def _train_with_tokenizers(settings: CompareMemorySettings) -> Merges:
    peer = import_package("tokenizers", "comparing with tokenizers")
    pre_tokenizers = peer.pre_tokenizers
    tokenizer = peer.Tokenizer(peer.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(peer.Regex(EXPRESSIONS[settings.pattern]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = peer.trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=list(dict.fromkeys(settings.special_tokens)),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _read_everything(settings)
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    rows = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(unprintable(left), unprintable(right)) for left, right in rows]


def _train_by_reference(settings: CompareMemorySettings) -> Merges:
    from lowtide.tokenizer import reference

    texts = [text.encode() for text in _read_everything(settings)]
    counts = reference.count_pieces(texts, pattern=settings.pattern, specials=[])
    target = settings.vocab_size - 256 - len(set(settings.special_tokens))
    return reference.learn_merges(counts, target=target, tie_break="huggingface")


def _read_everything(settings: CompareMemorySettings) -> list[str]:
    """Return all text in memory, as the ordinary way does, split at special tokens."""
    specials = sorted(set(settings.special_tokens), key=len, reverse=True)
    expression = re.compile("|".join(map(re.escape, specials))) if specials else None
    texts: list[str] = []
    for source in expand_inputs(settings.input):
        for text in _iter_whole_texts(source):
            texts += expression.split(text) if expression else [text]
    if not any(texts):
        raise DataError("there is no text in the input files")
    return texts


def _iter_whole_texts(source: InputFile) -> Iterator[str]:
    if source.format.block_kind == "text":
        with open_stream(source) as reader:
            yield b"".join(iter(lambda: reader.read(1 << 20), b"")).decode("utf-8", "replace")
        return
    options = ReadingSettings()
    for stream in plan_streams([source], options):
        for block in iter_blocks(stream, options):
            if block is not None:
                for document in block_documents(block, options, {source.index: source.path}):
                    yield document.text.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(_work(Path(sys.argv[1]), Path(sys.argv[2])))
