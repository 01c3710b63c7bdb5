"""stdout and stderr of a command that continues when nobody reads them any more.

A pipe whose reader has ended (`lowtide inspect data | head`), a terminal that was closed (ssh lost
its connection), a log on a full disk: none of these may stop the work, or make it exit as a success
without a result. Output that cannot be written to stderr is dropped, and so is stdout without a
reader. A result that cannot be written, for example to a full disk, is an error as usual. A command
that was started without these streams (`>&-`, some daemons) works as with /dev/null.
"""

from __future__ import annotations

import io
import os
import sys
from typing import IO, TextIO

__all__ = ["is_stdout_read", "is_terminal", "outlive_readers"]

_lost = {"stdout": False}


def outlive_readers() -> None:
    """Let this process continue after the readers of its stdout and stderr have ended."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))
    sys.stdout = _outliving(sys.stdout, keeps_errors=True)
    sys.stderr = _outliving(sys.stderr, keeps_errors=False)


def is_stdout_read() -> bool:
    """False once the reader of stdout is known to be gone."""
    return not _lost["stdout"]


def is_terminal(stream: object) -> bool:
    """True for a terminal; False for None, and for streams of other programs without isatty."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())


def _nowhere(mode: str) -> IO[str]:
    """A stream to /dev/null; it takes the free number of the standard stream, also in children.

    Else the next file that is opened would get that number, and what is printed.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return os.fdopen(descriptor, mode, encoding="utf-8", closefd=False)


class _Outlet(io.RawIOBase):
    """Writes to a descriptor while that is possible."""

    def __init__(self, descriptor: int, *, keeps_errors: bool) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._keeps_errors = keeps_errors

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and not (self._keeps_errors and _lost["stdout"]):
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            _lost["stdout"] |= self._keeps_errors
        except OSError:
            if self._keeps_errors:
                raise
        return size


def _outliving(stream: TextIO, *, keeps_errors: bool) -> TextIO:
    """A stream to the same file; the stream itself if it has no file descriptor."""
    try:
        outlet = _Outlet(stream.fileno(), keeps_errors=keeps_errors)
        stream.flush()
    except (OSError, ValueError):  # a closed one, or one of a notebook or a test
        return stream
    unbuffered = isinstance(stream, io.TextIOWrapper) and stream.write_through
    return io.TextIOWrapper(
        outlet if unbuffered else io.BufferedWriter(outlet),  # pyright: ignore[reportArgumentType]
        encoding=stream.encoding,
        errors="backslashreplace",  # text that the terminal cannot show is not an error
        line_buffering=not keeps_errors or outlet.isatty(),
        write_through=unbuffered,
    )
