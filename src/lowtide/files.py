"""Write files so that a kill, a crash or a full disk never leaves half of one under its final name.

Every write goes to a hidden sibling (`.NAME.partial`), is flushed to the disk, and is then renamed.
The sibling's name is fixed, so an interrupted run leaves at most one, which the next run replaces.

Memory:  one buffer of 1 MiB
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import xxhash

from lowtide.errors import DataError, UsageError

__all__ = [
    "atomic_file",
    "checksum_bytes",
    "checksum_file",
    "free_disk_bytes",
    "json_bytes",
    "lock_folder",
    "partial_path",
    "publish",
    "read_json",
    "sync_directory",
    "write_bytes",
    "write_json",
]

PathLike = str | os.PathLike[str]
_BUFFER_BYTES = 1 << 20


def partial_path(path: PathLike) -> Path:
    """Where the bytes of `path` live until they are whole."""
    path = Path(path)
    return path.with_name(f".{path.name}.partial")


def sync_directory(path: PathLike) -> None:
    """Flush a folder's entries, so that a rename inside it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot flush a folder; they have no other way either.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def publish(path: PathLike, *, sync_folder: bool = True) -> None:
    """Flush the finished `partial_path(path)` and give it its final name.

    Without `sync_folder` a power cut may undo the renaming, until the folder is flushed.
    """
    partial = partial_path(path)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)
    if sync_folder:
        sync_directory(Path(path).parent)


@contextlib.contextmanager
def lock_folder(path: PathLike) -> Generator[None]:
    """Keep a folder for this command; another one that wants it meanwhile is refused.

    The system gives it back when the process ends, in whatever way.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another lowtide command is at work in this folder",
                path=path,
                next_step="wait until it has ended, or choose another folder",
            ) from None
        except OSError:
            pass  # some network file systems have no locks on folders
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: PathLike, *, sync_folder: bool = True) -> Generator[IO[bytes]]:
    """Open `path` for writing; it appears under its name only if the block ends well.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "numbers.bin"
    >>> with atomic_file(target) as file:
    ...     _ = file.write(b"1234")
    >>> target.read_bytes()
    b'1234'
    """
    partial = partial_path(path)
    try:
        with partial.open("wb", buffering=_BUFFER_BYTES) as file:
            yield file
        publish(path, sync_folder=sync_folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise _named(error, partial, Path(path)) from error.__cause__
        raise


def _named(error: OSError, partial: Path, path: Path) -> OSError:
    """Give an error that names the file meant: write() names none, open() the hidden one."""
    if error.errno is None and free_disk_bytes(path) < _BUFFER_BYTES:
        # NumPy says only how many items it could not write.
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if error.errno is not None and error.filename in (None, str(partial)):
        error.filename = str(path)
    return error


def write_bytes(path: PathLike, data: bytes, *, sync_folder: bool = True) -> None:
    """Write `data` to `path` atomically."""
    with atomic_file(path, sync_folder=sync_folder) as file:
        file.write(data)


def json_bytes(value: Any) -> bytes:
    """What `write_json` writes for `value`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A file's name may be no UTF-8; Python's notation of such bytes is an escape of JSON as well.
    return text.encode("utf-8", "backslashreplace")


def write_json(path: PathLike, value: Any) -> None:
    """Write `value` to `path` atomically as readable JSON."""
    write_bytes(path, json_bytes(value))


def read_json(path: PathLike) -> Any:
    """Read JSON, with an error that names the file when it is missing or damaged."""
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise DataError("file not found", path=path) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not JSON: {error}", path=path) from None


def checksum_bytes(data: bytes) -> str:
    """Give the xxh3-128 of `data` in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def checksum_file(path: PathLike) -> str:
    """Give the xxh3-128 of a file in hexadecimal, read through one small buffer."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def free_disk_bytes(path: PathLike) -> int:
    """Give the free space where `path` is or will be."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
