"""The whole way on text that every machine has: the Python standard library's own source files.

In:      the standard library (each file a document), or the user's own text
Out:     a folder with text, tokenizer, dataset, run and commands.sh; what each stage took
Memory:  one source file; the stages are the ordinary verbs, run one after the other as processes
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.files import atomic_file, read_json, write_bytes, write_json
from lowtide.memory import format_size, parse_size
from lowtide.progress import format_count, format_seconds
from lowtide.settings import build_settings

__all__ = ["DemoSettings", "StageResult", "run_demo"]

# Not the library's own code, or not text that reads like code: tables of characters, help texts.
_SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages", "test", "tests", "__pycache__", "ensurepip"),
    *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
}
_PROGRAM = (sys.executable, "-m", "lowtide")
_ENOUGH_FILES = 50
_SEQUENCE_LENGTH = 128
_BATCH_SIZE = 16
_MODEL_FLAGS = {"--num-layers": 4, "--width": 128, "--num-heads": 4}
_NEW_TOKENS = 160
_GRACE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """What the demo runs on, and where it leaves everything."""

    text: Path | None = None
    """Your own text file (txt, jsonl or parquet); without it, the sources of Python's library."""
    out_dir: Path = Path("demo")
    """Folder for everything the demo makes."""
    memory: str = "1GiB"
    """Memory budget of each stage."""
    vocab_size: int = 2048
    """Tokens the tokenizer learns."""
    max_iters: int = 400
    """Training steps."""
    prompt: str | None = None
    """What the generated text begins with."""


@dataclasses.dataclass(frozen=True)
class _Stage:
    """One verb of the demo; `amount` of `unit` is the work its throughput is counted in."""

    verb: str
    flags: Mapping[str, object]
    """Flags and their values; None for a flag that takes none."""
    amount: float
    unit: str
    metrics_dir: str | None
    """Where the verb keeps its metrics.jsonl."""

    @property
    def words(self) -> list[str]:
        words = [self.verb]
        for flag, value in self.flags.items():
            words += [flag] if value is None else [flag, str(value)]
        return words

    @property
    def command(self) -> str:
        return shlex.join(["lowtide", *self.words])

    @property
    def result(self) -> dict[str, str]:
        """The flags that decide what comes out; memory only bounds what it takes."""
        return {flag: str(value) for flag, value in self.flags.items() if flag != "--memory"}


@dataclasses.dataclass(frozen=True)
class StageResult:
    """What one stage took, over all attempts if it was interrupted."""

    verb: str
    seconds: float
    peak_bytes: int
    budget_bytes: int | None
    """None for a stage that has no budget of its own."""
    amount: float
    unit: str
    was_there: bool

    @property
    def rate(self) -> float:
        """Units of work per second, start-up included."""
        return self.amount / max(self.seconds, 1e-9)


def run_demo(settings: DemoSettings | None = None, /, **options: Any) -> list[StageResult]:
    """Run every stage that is not there yet, and give what each took."""
    settings = settings or build_settings(DemoSettings, options)
    budget_bytes = parse_size(settings.memory)
    folder = settings.out_dir
    folder.mkdir(parents=True, exist_ok=True)
    text_path = _text_path(settings)
    stages = _plan(settings, text_path)
    journal = _Journal(folder / "demo.json", stages)
    _write_commands(folder / "commands.sh", settings, stages)
    results: list[StageResult] = []
    for number, stage in enumerate(stages, 1):
        # Text is generated again each time: it is what the reader came for, and takes seconds.
        was_there = journal.is_finished(stage) and stage.verb != "generate"
        note = f"{stage.verb}: is there already" if was_there else stage.command
        print(f"\n[{number}/{len(stages)}] {note}", file=sys.stderr, flush=True)
        if not was_there:
            _run_stage(stage, folder, journal, resume_command=_resume_command(settings))
        results.append(
            StageResult(
                verb=stage.verb,
                seconds=journal.seconds(stage),
                peak_bytes=max(journal.peak_bytes(stage), _measured_peak(stage, folder)),
                budget_bytes=budget_bytes if "--memory" in stage.flags else None,
                amount=stage.amount,
                unit=stage.unit,
                was_there=was_there,
            )
        )
    return results


def describe_results(results: list[StageResult], out_dir: Path) -> str:
    """Give the table of stages, and what the reader can do next."""
    header = ("stage", "time", "throughput", "peak memory", "budget", "used")
    rows: list[tuple[str, ...]] = [header]
    for result in results:
        rate = format_size(result.rate) if result.unit == "B" else format_count(result.rate)
        rows.append(
            (
                result.verb + (" (was there)" if result.was_there else ""),
                format_seconds(result.seconds),
                f"{rate}/s" if result.unit == "B" else f"{rate} {result.unit}/s",
                format_size(result.peak_bytes),
                format_size(result.budget_bytes) if result.budget_bytes else "",
                f"{100 * result.peak_bytes / result.budget_bytes:.0f}%"
                if result.budget_bytes
                else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines: list[str] = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    total = sum(result.seconds for result in results)
    return "\n".join(
        [
            *lines,
            "",
            f"{format_seconds(total)} in all. Everything is in {out_dir}; "
            f"{out_dir / 'commands.sh'} has the commands that made it. To go on from there:",
            f"  cd {shlex.quote(str(out_dir))}",
            '  lowtide generate --model-name demo --prompt "import"',
        ]
    )


def _text_path(settings: DemoSettings) -> Path:
    """Give the text the demo runs on; gather the library's sources if they are not there yet."""
    if settings.text is not None:
        if not settings.text.is_file():
            raise DataError(
                "text file not found",
                path=settings.text,
                next_step="check the path for typing errors",
            )
        if settings.text.stat().st_size == 0:
            raise DataError("text file is empty", path=settings.text, next_step="name another one")
        return settings.text.absolute()
    path = settings.out_dir / "text" / "python.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_library_sources(path)
    return path


def _write_library_sources(path: Path) -> None:
    """Write each source file of the standard library as one row of jsonl."""
    root = Path(sysconfig.get_paths()["stdlib"])
    num_files = 0
    with atomic_file(path) as file:
        for source in _iter_library_files(root):
            try:
                text = source.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue  # a few old modules are written in Latin-1
            if text.strip():
                row = {"text": text, "source": str(source.relative_to(root))}
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
                num_files += 1
        if num_files < _ENOUGH_FILES:
            raise DataError(
                f"only {num_files} source files of Python's library found, too few to learn from",
                path=root,
                next_step="lowtide demo --text FILE runs the demo on your own text",
            )


def _iter_library_files(root: Path) -> Iterator[Path]:
    """Give the library's source files in a fixed order."""
    for folder, folder_names, file_names in os.walk(root):
        folder_names[:] = sorted(set(folder_names) - _SKIPPED_FOLDERS)
        for name in sorted(file_names):
            if name.endswith(".py"):
                yield Path(folder) / name


def _plan(settings: DemoSettings, text_path: Path) -> list[_Stage]:
    """Give the stages as the verbs a user would type inside the demo's folder."""
    text_bytes = text_path.stat().st_size
    text = text_path.relative_to(settings.out_dir) if settings.text is None else text_path
    memory = {"--memory": settings.memory}
    tokenizer_flags = {"--input": text, "--vocab-size": settings.vocab_size}
    # Code is not prose: its blanks mean something, and the same line comes again and again.
    as_it_is = {"--no-normalize": None, "--no-filter": None, "--no-dedup": None}
    prepare_flags = {"--input-files": text, "--tokenization": "tokenizer", **as_it_is}
    num_steps = settings.max_iters
    train_flags = {
        "--dataset-dir": "data",
        "--model-name": "demo",
        **_MODEL_FLAGS,
        "--seq-len": _SEQUENCE_LENGTH,
        "--batch-size": _BATCH_SIZE,
        "--max-iters": num_steps,
        "--eval-interval": max(1, num_steps // 4),
        "--eval-iters": 10,
        "--save-interval": max(1, num_steps // 8),
    }
    generate_flags = {
        "--model-name": "demo",
        "--prompt": settings.prompt or ("def __init__(self" if settings.text is None else "The"),
        "--max-new-tokens": _NEW_TOKENS,
        "--seed": 1,
    }
    return [
        _Stage(
            "train-tokenizer",
            {**tokenizer_flags, "--out-dir": "tokenizer", **memory},
            text_bytes,
            "B",
            "tokenizer",
        ),
        _Stage(
            "prepare", {**prepare_flags, "--out-dir": "data", **memory}, text_bytes, "B", "data"
        ),
        _Stage(
            "train",
            {**train_flags, **memory},
            num_steps * _BATCH_SIZE * _SEQUENCE_LENGTH,
            "tokens",
            "checkpoints/demo",
        ),
        _Stage("generate", generate_flags, _NEW_TOKENS, "tokens", None),
    ]


def _write_commands(path: Path, settings: DemoSettings, stages: list[_Stage]) -> None:
    where = "text/python.jsonl: one document per source file" if settings.text is None else "yours"
    lines = [
        "#!/bin/sh",
        "# The commands `lowtide demo` ran, in this folder. What is whole is not made again:",
        "# remove an output folder, or name another one, to see its stage work.",
        f"# The text is {where}.",
        "set -e",
        'cd "$(dirname "$0")"',
        *(stage.command for stage in stages),
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
    path.chmod(0o755)


class _Journal:
    """What the demo's stages have taken so far, kept in demo.json so that a stop loses nothing."""

    def __init__(self, path: Path, stages: list[_Stage]) -> None:
        self._path = path
        self._rows: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}
        for stage in stages:
            row = self._rows.get(stage.verb, {})
            is_other = row.get("finished", False) and row["result"] != stage.result
            if is_other and stage.verb != "generate":
                raise UsageError(
                    f"this folder holds a demo with other settings: {row['command']}",
                    path=path.parent,
                    next_step="choose another --out-dir, or remove this folder",
                )

    def is_finished(self, stage: _Stage) -> bool:
        return self._rows.get(stage.verb, {}).get("finished", False)

    def seconds(self, stage: _Stage) -> float:
        return self._rows[stage.verb]["seconds"]

    def peak_bytes(self, stage: _Stage) -> int:
        return self._rows[stage.verb]["peak_bytes"]

    def add(self, stage: _Stage, *, seconds: float, peak_bytes: int, finished: bool) -> None:
        """Note one attempt; attempts that did not finish add up with the one that does."""
        before = self._rows.get(stage.verb, {})
        if before.get("finished", True):
            before = {"seconds": 0.0, "peak_bytes": 0}
        self._rows[stage.verb] = {
            "command": stage.command,
            "result": stage.result,
            "seconds": before["seconds"] + seconds,
            "peak_bytes": max(before["peak_bytes"], peak_bytes),
            "finished": finished,
        }
        write_json(self._path, self._rows)


def _run_stage(stage: _Stage, folder: Path, journal: _Journal, *, resume_command: str) -> None:
    """Run one verb to its end; its output, progress and errors go straight to the terminal.

    The kernel's peak of a child starts with what its parent held, so this process must stay small.
    """
    began = time.monotonic()
    child = subprocess.Popen([*_PROGRAM, *stage.words], cwd=folder)
    interrupted = False
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except KeyboardInterrupt:
        interrupted = True
        status, usage = _wait_after_interrupt(child.pid)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # reaped here, for its resource usage; Popen must not wait again
    journal.add(
        stage,
        seconds=time.monotonic() - began,
        peak_bytes=usage.ru_maxrss * 1024,
        finished=code == 0,
    )
    if code == 130:
        raise SystemExit(130)  # the stage has said that the same command goes on
    if interrupted:
        raise KeyboardInterrupt
    if code != 0:
        raise LowtideError(
            f"the demo stopped: {stage.verb} ended with exit code {code}",
            next_step=f"do what its message above says; then {resume_command} goes on here",
        )


def _wait_after_interrupt(pid: int) -> tuple[int, Any]:
    """Wait for a child that has most likely got the same Ctrl-C; pass it on if it has not."""
    deadline = time.monotonic() + _GRACE_SECONDS
    passed_on = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage
        if not passed_on and time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)  # SIGINT is ignored by what runs in the background
            passed_on = True
        time.sleep(0.05)


def _resume_command(settings: DemoSettings) -> str:
    words = ["lowtide", "demo"]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name != "memory":  # it may be what was wrong
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _measured_peak(stage: _Stage, folder: Path) -> int:
    """Give the largest peak of the stage's process tree in its metrics.jsonl, 0 without one."""
    if stage.metrics_dir is None:
        return 0
    path = folder / stage.metrics_dir / "metrics.jsonl"
    if not path.exists():
        return 0
    peak = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                peak = max(peak, int(json.loads(line).get("peak_memory_bytes") or 0))
            except (ValueError, AttributeError):
                continue  # the last line of a killed run may be half written
    return peak
