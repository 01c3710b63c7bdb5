"""The errors lowtide raises: what is wrong, where, and what to do next.

The library raises these; only `cli.py` turns them into a message and an exit code. Warnings that a
caller does not collect as notices go to stderr through `warn`.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Generator
from os import PathLike
from pathlib import PurePath

from lowtide.filenames import (
    CHECKSUMS_NAME,
    CLASSIFIER_NAME,
    CONFIG_NAME,
    LEARNED_NAME,
    METADATA_NAME,
    SETTINGS_NAME,
    TOKENIZER_NAME,
)

__all__ = [
    "BudgetError",
    "BudgetPassedError",
    "DataError",
    "FullScratchError",
    "LowtideError",
    "UsageError",
    "explaining_os_errors",
    "from_device_error",
    "from_lost_process",
    "from_os_error",
    "printable",
    "warn",
]

# Characters that a terminal interprets: control characters of ASCII and Latin-1, except newline
# and tab.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_PRINTABLE = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Text that is safe to show on a terminal: control characters are escaped.

    All text from files, file names and settings is escaped here before it is printed.

    >>> print(printable("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    # Python represents names that are not UTF-8 with lone surrogates, which cannot be encoded.
    return text.translate(_PRINTABLE).encode("utf-8", "backslashreplace").decode()


def warn(text: str) -> None:
    """Print a line on stderr that a user should see even with --quiet."""
    print(printable(text), file=sys.stderr, flush=True)


class LowtideError(Exception):
    """An error that the user can resolve; `str()` gives the message that the command line shows."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.message]
        if self.path is not None:
            lines.append(f"  file: {self.path}")
        next_step = self.next_step or self.usual_step()
        if next_step is not None:
            lines.append(f"  next: {next_step}")
        return "\n".join(lines)

    def usual_step(self) -> str | None:
        """The next step for errors raised without one."""
        return None


class UsageError(LowtideError):
    """A setting that is invalid with any data."""

    exit_code = 2


class BudgetError(LowtideError):
    """The memory budget or the disk is too small for the job."""


class BudgetPassedError(BudgetError):
    """The work is done and complete, but took more memory than its budget."""

    exit_code = 3


class DataError(LowtideError):
    """Input or stored data that is missing, damaged, or of another kind than expected."""

    def usual_step(self) -> str | None:
        """How to restore a file of this name."""
        if self.path is None:
            return None
        name = PurePath(self.path).name
        made_by = next((verbs for end, verbs in _MADE_BY.items() if name.endswith(end)), None)
        if made_by is None:
            return "bring the file back as it was, or name another one"
        return f"bring the file back as it was, or make it anew with {made_by}"


_MADE_BY = {
    METADATA_NAME: "lowtide prepare, from the same text",
    ".docs": "lowtide prepare; lowtide verify says what else is wrong",
    LEARNED_NAME: "lowtide train-tokenizer",
    CLASSIFIER_NAME: "lowtide train-classifier",
    TOKENIZER_NAME: "lowtide train-tokenizer, or take the one of the data it belongs to",
    SETTINGS_NAME: "lowtide train; without it the run goes on with the settings given then",
    CHECKSUMS_NAME: "the command that wrote the folder (train or export)",
    CONFIG_NAME: "the command that wrote the folder (train or export)",
    ".safetensors": "the command that wrote the folder (train or export)",
    ".npy": "lowtide pretokenize",
    ".idx": "the program it is of",
    ".bin": "the program it is of, or lowtide prepare",
}


class FullScratchError(OSError):
    """The disk that temporary files are on (TMPDIR) is full; `filename` is their folder."""


_OS_ADVICE = {
    errno.ENOSPC: ("the disk is full", "free some space, then give the same command again"),
    errno.EDQUOT: (
        "the disk quota is used up",
        "free some space, then give the same command again",
    ),
    errno.EACCES: ("permission denied", "check who may read and write this path"),
    errno.EPERM: ("permission denied", "check who may read and write this path"),
    errno.EROFS: ("the file system is read-only", "choose an output folder that can be written"),
    errno.ENOENT: ("no such file or folder", "check the path for typing errors"),
    errno.EISDIR: ("this is a folder, a file was expected", "name a file"),
    errno.EEXIST: ("this exists already", "choose another path, or remove it first"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.EFBIG: ("the file is larger than the system allows", "raise the limit: ulimit -f"),
    errno.ESTALE: (
        "this file was changed while it was read",
        "leave it alone until the command has ended, then give the same command again",
    ),
    errno.EBADMSG: (
        "this file of unfinished work is damaged",
        "remove it with the folder it is in, then give the same command again",
    ),
    errno.ELOOP: ("this link leads in a circle", "name the file it should lead to"),
    errno.ENXIO: ("this is a pipe or a device, expected a file", "write its contents to a file"),
    errno.ENOMEM: ("out of memory", "close other programs, or give a smaller --memory"),
    errno.EIO: ("the disk failed to read or write", "check the disk (dmesg), then try again"),
    errno.ENOTDIR: ("a part of this path is a file, not a folder", "choose another path"),
    errno.EMFILE: ("too many open files", "raise the limit with: ulimit -n 4096"),
}


_OS_USUAL = "see to the disk or the folder, then give the same command again"


def from_os_error(error: OSError) -> LowtideError:
    """Turn an error of the operating system into one that names the next step."""
    what, next_step = _OS_ADVICE.get(error.errno or 0, (error.strerror or str(error), _OS_USUAL))
    if isinstance(error, FullScratchError):
        what += ", and temporary files need more of it"
        next_step = (
            "free some space there, or set TMPDIR to a folder with more; then give the same "
            "command again"
        )
    return LowtideError(what, path=error.filename, next_step=next_step)


@contextlib.contextmanager
def explaining_os_errors() -> Generator[None]:
    """Turn errors of the operating system in this context into those that name the next step."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error) from None


def from_device_error(error: Exception) -> LowtideError | None:
    """Turn an out-of-memory error of a GPU into one that names the next step.

    None for other errors. It is recognized by its names in torch and JAX; neither is imported here.
    """
    if type(error).__name__ != "OutOfMemoryError" and "RESOURCE_EXHAUSTED" not in str(error):
        return None
    said = str(error).partition("\n")[0].partition(" Process ")[0].partition(" Including ")[0]
    return BudgetError(
        f"the device has no memory left: {said}",
        next_step="end other programs on it (nvidia-smi names them), give another --device, or "
        "take less at once: lowtide plan says what fits",
    )


def from_lost_process(error: Exception) -> LowtideError | None:
    """Turn the error of a process whose partner in training has ended into one that says so.

    None for other errors. Gloo and NCCL are recognized by what they say.
    """
    lost = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
    if not isinstance(error, RuntimeError) or not any(words in str(error) for words in lost):
        return None
    return LowtideError(
        "another process of this run has ended",
        next_step="see its own error; then the same command goes on from the last checkpoint",
    )
