"""The state of a stopped command, in a small file from which the same command resumes.

In:      the verb, what must be the same to resume, and the progress of the work
Out:     a JSON file with version, verb, these notes, and a checksum of all before it
Memory:  the notes, once as text

Every verb that can resume after a kill stores its progress in such a file. It is replaced
atomically, so it is always complete. Notes of another version or verb, and damaged notes, are not
used: the work starts over, with one line that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import xxhash

from lowtide.errors import DataError
from lowtide.files import atomic_file, json_bytes, read_json, read_whole
from lowtide.quickclasses import dataclass

__all__ = ["Journal", "read_notes", "write_notes"]

_END = b"\n}\n"
_CHECKSUM = re.compile(rb',\n  "checksum": "([0-9a-f]{32})"\n}\n\Z')
_TAIL_BYTES = 64


@dataclass(frozen=True)
class Journal:
    """The file with a verb's progress; `version` is the version of its notes.

    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "place.json", verb="prepare", version=1)
    >>> journal.write({"offset": 7})
    >>> journal.read(on_notice=print)
    {'offset': 7}
    """

    path: Path
    verb: str
    version: int

    def write(self, notes: Mapping[str, Any]) -> None:
        """Replace the notes."""
        write_notes(self.path, {"version": self.version, "verb": self.verb, **notes})

    def read(self, *, on_notice: Callable[[str], None]) -> dict[str, Any] | None:
        """The notes; None, with a notice, if there are none or they cannot be used."""
        try:
            notes = read_notes(self.path)
        except DataError as error:
            on_notice(f"{self.path.name} cannot be read, the work begins anew: {error.message}")
            return None
        if notes is None:
            return None
        kind = (notes.pop("verb", None), notes.pop("version", None))
        if kind != (self.verb, self.version) or notes.pop("checksum", None) is None:
            on_notice(f"{self.path.name} is of another version of lowtide: the work begins anew")
            return None
        return notes

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def write_notes(path: Path, notes: Mapping[str, Any]) -> None:
    """Write notes with their checksum, atomically."""
    text = json_bytes(notes)
    if not text.endswith(_END):
        raise ValueError("notes without a key")
    with atomic_file(path) as file:
        file.write(memoryview(text)[: -len(_END)])
        file.write(f',\n  "checksum": "{xxhash.xxh3_128_hexdigest(text)}"'.encode() + _END)


def read_notes(path: Path) -> dict[str, Any] | None:
    """The notes of a file with all their keys; None if there is no file.

    Notes without a checksum are those of an earlier version. Damaged ones are an error.
    """
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError("expected an object with the place of a stopped command", path=path)
    notes = cast("dict[str, Any]", value)
    if "checksum" in notes and not _is_whole(read_whole(path)):
        raise DataError("these notes do not have their checksum", path=path)
    return notes


def _is_whole(text: bytes) -> bool:
    found = _CHECKSUM.search(text, max(0, len(text) - _TAIL_BYTES))
    if found is None:
        return False
    digest = xxhash.xxh3_128(memoryview(text)[: found.start()])
    digest.update(_END)
    return digest.hexdigest() == found[1].decode()
