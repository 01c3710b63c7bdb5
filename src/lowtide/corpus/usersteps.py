"""Run the user's Python function (`--step`) on documents, in a pool of processes.

In:      `--step my_rules.py:keep`; texts of documents
Out:     for each text: the same text, another one, or None
Memory:  a process for each worker, with the memory of the function; a batch of texts twice

Python has one interpreter lock (GIL) per process, so threads would not run in parallel. A worker
borrows a process for a block and returns it; the processes end with this one, because their stdin
is closed.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

import xxhash

from lowtide import files
from lowtide.corpus import stepprocess
from lowtide.errors import DataError, UsageError, from_os_error
from lowtide.memory import format_size, resident_bytes

__all__ = [
    "STEP_NOTICE",
    "StepError",
    "apply_step",
    "canonical_step",
    "step_bytes",
    "step_checksum",
    "stop_steps",
]

STEP_NOTICE = "--step calls Python for every document, which takes longer than all native rules"

_BATCH_BYTES = 1 << 20
# The function's results for a block are held together: at most this many times its bytes.
_MOST_TIMES, _MOST_SMALL_BYTES = 2, 8 << 20
_GROWTH_BYTES = 24 << 20  # memory of a function beyond that of its process at the start

_lock = threading.Lock()
_idle: dict[str, list[_StepProcess]] = {}


def canonical_step(step: str) -> str:
    """A step as FILE:NAME with the absolute path; an error if there is no such function.

    >>> canonical_step("")
    ''
    """
    if not step:
        return ""
    path_text, colon, name = step.rpartition(":")
    if not colon or not path_text or not name.isidentifier():
        raise UsageError(
            f"--step {step!r} is not FILE.py:FUNCTION", next_step="such as --step my_rules.py:keep"
        )
    path = Path(path_text).absolute()
    try:
        tree = ast.parse(files.read_whole(path), str(path))
    except OSError as error:
        raise from_os_error(error) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(
            f"--step is not a readable Python file: {error}",
            path=path,
            next_step=f"mend line {line}" if line else "name a file of Python",
        ) from None
    if name not in _top_names(tree):
        raise UsageError(
            f"--step {name!r} is not defined in this file",
            path=path,
            next_step=f"name one of {', '.join(sorted(_top_names(tree))[:8]) or 'its functions'}",
        )
    return f"{path}:{name}"


def _top_names(tree: ast.Module) -> set[str]:
    """The top-level names of a file: functions, imports and assignments."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(row.asname or row.name).partition(".")[0] for row in node.names}
        elif isinstance(node, ast.Assign):
            names |= {row.id for row in node.targets if isinstance(row, ast.Name)}
    return names


def step_checksum(step: str) -> str:
    """A checksum of a step's source and the function's name, which identifies it in the plan."""
    path, _, name = step.rpartition(":")
    return xxhash.xxh3_128_hexdigest(files.read_whole(Path(path)) + b"\0" + name.encode())


def step_bytes(step: str) -> int:
    """The approximate memory of a step's process: that of one with the function loaded."""
    with _borrow(step) as process:
        return process.resident_bytes() + _GROWTH_BYTES


def apply_step(
    step: str,
    texts: Sequence[memoryview],
    *,
    batch_bytes: int = _BATCH_BYTES,
    most_small_bytes: int = _MOST_SMALL_BYTES,
) -> Iterator[bytes | memoryview | None]:
    """The function's result for each text: the same text, another one, or None.

    If it fails on a text, the error has the text's index (`DataError.document`); likewise if the
    results exceed the memory limit.
    """
    with _borrow(step) as process:
        process.room_bytes = max(_MOST_TIMES * sum(text.nbytes for text in texts), most_small_bytes)
        begin, held = 0, 0
        for end, text in enumerate(texts, 1):
            held += text.nbytes
            if held >= batch_bytes or end == len(texts):
                yield from process.judge(texts[begin:end], begin)
                begin, held = end, 0


class StepError(DataError):
    """The function failed on a document; `document` is its index among the texts."""

    document: int = 0


def _step_error(message: str, document: int) -> StepError:
    next_step = "mend the function, and give the same command with --restart"
    error = StepError(message, next_step=next_step)
    error.document = document
    return error


class _TooMuch(Exception):  # noqa: N818
    """A response that exceeds the memory limit."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes


class _StepProcess:
    """One process, and the pipes to it."""

    def __init__(self, step: str) -> None:
        import subprocess  # takes 2 ms, not needed by commands without a step

        self.room_bytes = _MOST_SMALL_BYTES
        """Bytes left for its responses."""
        self._path, _, name = step.rpartition(":")
        program = [sys.executable, "-u", stepprocess.__file__, self._path, name]
        self._process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        try:
            kind, data = self._read_answer()
            if kind == stepprocess.FAILED:
                raise DataError(
                    f"--step cannot be loaded: {data.decode('utf-8', 'replace')}",
                    path=self._path,
                    next_step="mend it, and give the command again",
                )
        except BaseException:
            self.stop()
            raise

    @property
    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def resident_bytes(self) -> int:
        """The current memory of the process."""
        return resident_bytes(self._process.pid)

    def judge(self, texts: Sequence[memoryview], first: int) -> Iterator[bytes | memoryview | None]:
        """Send texts, and return the results."""
        to, _ = self._pipes
        sizes = [len(texts), *(text.nbytes for text in texts)]
        try:
            to.write(b"".join(stepprocess.COUNT.pack(size) for size in sizes))
            for text in texts:
                to.write(text)
            to.flush()
        except BrokenPipeError:
            raise self._ended() from None
        for number, text in enumerate(texts, first):
            try:
                kind, data = self._read_answer()
            except _TooMuch as answer:
                made = f"--step made {format_size(answer.size_bytes)} of one document"
                raise _step_error(
                    f"{made}, and a block of them may become {_MOST_TIMES} times as long", number
                ) from None
            if kind == stepprocess.FAILED:
                raise _step_error(f"--step failed: {data.decode('utf-8', 'replace')}", number)
            if kind == stepprocess.DROPPED:
                yield None
            else:
                yield text if kind == stepprocess.KEPT else data

    def _read_answer(self) -> tuple[int, bytes]:
        _, answers = self._pipes
        head = answers.read(stepprocess.HEAD.size)
        if len(head) != stepprocess.HEAD.size:
            raise self._ended()
        kind, size = stepprocess.HEAD.unpack(head)
        self.room_bytes -= size
        if self.room_bytes < 0:
            raise _TooMuch(size)
        data = answers.read(size)
        if len(data) != size:
            raise self._ended()
        return kind, data

    def _ended(self) -> DataError:
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return DataError(
            f"the process of --step ended ({how}) before its documents were done",
            path=self._path,
            next_step="see what it printed; a function that takes much memory may be killed for it",
        )

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()


@contextlib.contextmanager
def _borrow(step: str) -> Generator[_StepProcess]:
    """Give one worker at a time a process; after an error that process is not used again."""
    key = f"{step}\0{step_checksum(step)}"
    with _lock:
        idle = _idle.setdefault(key, [])
        process = idle.pop() if idle else None
    process = process or _StepProcess(step)
    try:
        yield process
    except BaseException:
        process.stop()
        raise
    with _lock:
        _idle.setdefault(key, []).append(process)


def stop_steps() -> None:
    """Stop all processes that are not in use."""
    with _lock:
        unused = [process for row in _idle.values() for process in row]
        _idle.clear()
    for process in unused:
        process.stop()


atexit.register(stop_steps)
