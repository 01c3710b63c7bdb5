"""Write files so that a kill, a crash or a full disk never leaves half of one under its final name.

Every write goes to a hidden file in the same folder (`.NAME.RANDOM.partial`), is flushed to the
disk, and is then renamed. The hidden file must not exist before: an existing link is not followed.
A command that writes an output holds its lock from start to end, and the lock's next owner removes
hidden files that a killed command left behind.

Memory:  one buffer of 1 MiB
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any

import xxhash

from lowtide.errors import DataError, UsageError, warn
from lowtide.filenames import LOCK_NAME
from lowtide.sparelocks import give_up_lock, take_spare_lock
from lowtide.unfinished import mark_used, remove_leftovers, unused_name

__all__ = [
    "atomic_file",
    "atomic_path",
    "checksum_bytes",
    "checksum_file",
    "create_file",
    "flush_file",
    "free_disk_bytes",
    "hold_lock",
    "json_bytes",
    "open_file",
    "publish",
    "read_json",
    "read_whole",
    "require_file",
    "sync_directory",
    "write_bytes",
    "write_json",
]

PathLike = str | os.PathLike[str]
Publisher = Callable[[Path, Path], None]
"""Called with a finished file and its final path."""
_BUFFER_BYTES = 1 << 20
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
_MOST_WHOLE_BYTES = 1 << 30
_ADDRESS = re.compile(r"(?:^|/)(s3a?|gs|az|azure|abfss?):/+(.*)")


def create_file(path: PathLike) -> int:
    """Create a file that does not exist yet, and return its descriptor; links are not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def flush_file(path: PathLike) -> None:
    """Flush a closed file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: PathLike) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    try:
        flush_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support it
            raise


def publish(partial: Path, path: Path, *, sync_folder: bool = True) -> None:
    """Flush a finished file and give it its final name.

    Without `sync_folder`, a power cut may undo the rename until the folder is flushed.
    """
    flush_file(partial)
    partial.replace(path)
    if sync_folder:
        sync_directory(path.parent)


def require_local(path: PathLike) -> None:
    """Raise an error for a URL as an output, which would become a folder called "s3:"."""
    if found := _ADDRESS.search(os.fspath(path)):
        raise UsageError(
            f"{found[1]}://{found[2]} is an address, and what lowtide writes goes to a disk",
            next_step="name a folder of this machine, and copy it there when it is finished",
        )


@contextlib.contextmanager
def hold_lock(
    path: PathLike,
    *,
    create_folder: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> Generator[None]:
    """Lock an output, a folder or a file; other commands get an error while the lock is held.

    With `create_folder` the output is a folder: created here, and removed again if it stays empty.

    The system releases the lock when the process ends, however it ends. The lock is a file, not
    the folder, because network disks lock only files that can be written; on a disk without locks
    `on_notice` (stderr by default) is called to say that the output is not locked.
    """
    path = Path(path)
    require_local(path)
    made: list[Path] = []
    if create_folder:
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    lock = path / LOCK_NAME if path.is_dir() else path.with_name(f".{path.name}{LOCK_NAME}")
    if (descriptor := take_spare_lock(lock)) is None:
        descriptor = _open_lock(lock, path, on_notice or warn)
        with contextlib.suppress(OSError):  # a full disk: the lock then lacks its owner's name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_describe_owner()).encode(), 0)
    try:
        remove_leftovers(path)
        yield
    finally:
        give_up_lock(lock, descriptor)
        with contextlib.suppress(OSError):  # stops at the first folder that is not empty
            for folder in made:
                folder.rmdir()


def _open_lock(lock: Path, path: Path, on_notice: Callable[[str], None]) -> int:
    """Open and lock `lock`, again until the locked file is the one of that name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(lock, flags, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DataError("this is a link, expected a lock of lowtide", path=lock) from None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _read_owner(descriptor)
            if error.errno in _NO_LOCKS:
                on_notice(f"{path}: this disk has no locks; see that no other command writes here")
                return descriptor
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise UsageError(
                f"another lowtide command is at work here: {owner}",
                path=path,
                next_step="wait until it has ended, or choose another output",
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat(follow_symlinks=False)):
                return descriptor
        os.close(descriptor)  # its owner has just ended and removed it


def _describe_owner() -> dict[str, Any]:
    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "command": " ".join([name, *sys.argv[1:]]),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _read_owner(descriptor: int) -> str:
    """Description of a lock's holder; the file may be empty, briefly or permanently."""
    try:
        owner = json.loads(os.pread(descriptor, 1 << 16, 0))
        text = (
            f"process {owner['pid']} on {owner['host']} since {owner['since']} "
            f"({owner['command'][:200]})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "its process is not known yet"
    return "".join(sign if sign.isprintable() else "?" for sign in text)


@contextlib.contextmanager
def atomic_path(
    path: PathLike, *, sync_folder: bool = True, publisher: Publisher | None = None
) -> Generator[Path]:
    """A new, empty file to write by name; then renamed to `path`, or passed to `publisher`."""
    with _unfinished(Path(path), sync_folder, publisher) as (partial, _):
        yield partial


@contextlib.contextmanager
def _unfinished(
    path: Path, sync_folder: bool, publisher: Publisher | None
) -> Generator[tuple[Path, int]]:
    """A new file and its descriptor; at the end the file is finished."""
    partial = unused_name(path, "partial")
    descriptor = -1
    try:
        descriptor = create_file(partial)
        mark_used(descriptor)
        yield partial, descriptor
        if publisher is None:
            publish(partial, path, sync_folder=sync_folder)
        else:
            publisher(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise _named(error, partial, path) from error.__cause__
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def atomic_file(
    path: PathLike, *, sync_folder: bool = True, publisher: Publisher | None = None
) -> Generator[IO[bytes]]:
    """Open `path` for writing; it appears under its name only if the block ends without an error.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "numbers.bin"
    >>> with atomic_file(target) as file:
    ...     _ = file.write(b"1234")
    >>> target.read_bytes()
    b'1234'
    """
    with (
        _unfinished(Path(path), sync_folder, publisher) as (_, descriptor),
        open(descriptor, "r+b", buffering=_BUFFER_BYTES, closefd=False) as file,
    ):
        yield file


def _named(error: OSError, partial: Path, path: Path) -> OSError:
    """An error that names the intended file: write() names none, open() the hidden one."""
    if error.errno is None and free_disk_bytes(path) < _BUFFER_BYTES:
        # NumPy reports only how many items it could not write.
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if error.errno is not None and error.filename in (None, str(partial)):
        error.filename = str(path)
    return error


def write_bytes(
    path: PathLike, data: bytes, *, sync_folder: bool = True, publisher: Publisher | None = None
) -> None:
    """Write `data` to `path` atomically."""
    with atomic_file(path, sync_folder=sync_folder, publisher=publisher) as file:
        file.write(data)


def json_bytes(value: Any) -> bytes:
    """The bytes that `write_json` writes for `value`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A file's name may not be UTF-8; Python's lone surrogates for such bytes are valid JSON
    # escapes.
    return text.encode("utf-8", "backslashreplace")


def write_json(path: PathLike, value: Any) -> None:
    """Write `value` to `path` atomically as readable JSON."""
    write_bytes(path, json_bytes(value))


def open_file(path: PathLike) -> io.FileIO:
    """Open a file for reading, without a buffer; a pipe, which could block forever, is an error."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _require_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb", buffering=0)  # noqa: PTH123


def read_whole(path: PathLike, *, most_bytes: int = _MOST_WHOLE_BYTES) -> bytes:
    """Read a whole file that should be small; a pipe is an error, since it may never end."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size > most_bytes:
            raise DataError(
                f"a file of {status.st_size} bytes, expected {most_bytes} at most", path=path
            )
        return file.read()


def require_file(path: PathLike) -> None:
    """Raise an error for an existing path that is no file: opening a pipe would block forever."""
    _require_regular(os.stat(path), path)  # noqa: PTH116


def _require_regular(status: os.stat_result, path: PathLike) -> None:
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.ENXIO
        raise OSError(number, os.strerror(number), os.fspath(path))


def read_json(path: PathLike) -> Any:
    """Read JSON; the error for a missing or damaged file names it."""
    try:
        return json.loads(read_whole(path))
    except FileNotFoundError:
        raise DataError("file not found", path=path) from None
    except RecursionError:
        raise DataError("not JSON: lists within lists, thousands deep", path=path) from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise DataError(f"not JSON: {error}", path=path) from None


def checksum_bytes(data: bytes) -> str:
    """Return the xxh3-128 of `data` in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def checksum_file(path: PathLike, *, on_read: Callable[[int], None] | None = None) -> str:
    """Return the xxh3-128 of a file in hexadecimal, read through one small buffer.

    `on_read` is called with the number of bytes of each read.
    """
    digest = xxhash.xxh3_128()
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    with open_file(path) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            if on_read is not None:
                on_read(count)
    return digest.hexdigest()


def free_disk_bytes(path: PathLike) -> int:
    """Return the free space of the disk of `path`, which need not exist."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
