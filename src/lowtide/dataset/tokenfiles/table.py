"""The table of file formats of token ids, and how the format of a path is detected.

In:      a path; the name of a format if it is given
Out:     TokenFormat rows; TokenStream per split; TokenFile of a single file
Memory:  the first 16 bytes of a file, a row for each file
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.dataset.layout import DatasetInfo
from lowtide.dataset.tokenfiles.llmc import is_llmc, open_llmc, write_llmc
from lowtide.dataset.tokenfiles.megatron import open_megatron, write_megatron
from lowtide.dataset.tokenfiles.mypt import list_mypt_files, load_mypt_tokenizer, open_mypt
from lowtide.dataset.tokenfiles.npy import is_npy, open_npy, write_npy
from lowtide.dataset.tokenfiles.raw import open_raw, write_raw
from lowtide.dataset.tokenfiles.shards import mark_borders, open_shard
from lowtide.dataset.tokenfiles.streams import Opening, TokenFile, TokenStream, WrittenFiles
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME
from lowtide.files import require_file
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.arrays import np

__all__ = [
    "FORMATS",
    "SINGLE_SUFFIXES",
    "TokenFormat",
    "guess_format",
    "list_source_files",
    "load_source_tokenizer",
    "open_dataset",
    "open_source",
    "open_token_file",
]

_METADATA_BEGINNING = 4096


@dataclass(frozen=True)
class TokenFormat:
    """How the files of one format are found, opened and written."""

    suffix: str
    """Suffix of the files that `open` accepts."""
    detect: Callable[[Path], bool]
    """True for a file or folder of this format."""
    open: Callable[[Path, Opening], TokenFile]
    write: Callable[[Path, str, TokenStream, np.dtype[Any], WrittenFiles], list[Path]] | None = None
    """Writes a split into a folder, by its name; None if the format has nothing to write."""
    has_header: Callable[[Path, bytes], bool] | None = None
    """True for a single file whose first bytes, 16 at most, are this format's header."""
    beside: str | None = None
    """The suffix of a second file that belongs to each of those."""
    list_in: Callable[[Path], list[Path]] | None = None
    """Lists the files of a folder; default: by their suffix."""

    def list_files(self, path: Path) -> list[Path]:
        """The files for `open`: those of a folder, or the file itself."""
        if self.list_in is not None:
            return self.list_in(path)
        if path.is_dir():
            return sorted(path.glob(f"*{self.suffix}"))
        if self.beside is not None:
            path = path.with_suffix(self.suffix)
        if not path.is_file():
            raise DataError("no such file", path=path, next_step="check the path for typing errors")
        return [path]


def _names(path: Path) -> list[Path]:
    return sorted(path.glob("*")) if path.is_dir() else [path]


def _begins(path: Path, check: Callable[[bytes], bool], suffix: str) -> bool:
    """True if the first file with a suffix has a header accepted by `check`."""
    for name in _names(path):
        if name.suffix == suffix and name.is_file():
            with name.open("rb") as file:
                return check(file.read(16))
    return False


def _has_metadata(path: Path, *, ours: bool) -> bool:
    metadata = path / METADATA_NAME
    if not metadata.is_file():  # opening a pipe would block
        return False
    with metadata.open("rb") as file:  # before the sources, of which there may be many
        return (b'"format_version"' in file.read(_METADATA_BEGINNING)) == ours


def _has_index(path: Path) -> bool:
    names = _names(path)
    return any(name.suffix == ".idx" or name.with_suffix(".idx").is_file() for name in names)


FORMATS = {
    "lowtide": TokenFormat(".bin", lambda path: _has_metadata(path, ours=True), open_raw),
    "mypt": TokenFormat(
        ".bin",
        lambda path: _has_metadata(path, ours=False),
        open_mypt,
        list_in=list_mypt_files,
    ),
    "megatron": TokenFormat(".idx", _has_index, open_megatron, write_megatron, beside=".bin"),
    "npy": TokenFormat(
        ".npy",
        lambda path: any(name.suffix == ".npy" for name in _names(path)),
        open_npy,
        write_npy,
        has_header=lambda _, head: is_npy(head),
    ),
    "llmc": TokenFormat(
        ".bin",
        lambda path: _begins(path, is_llmc, ".bin"),
        open_llmc,
        write_llmc,
        has_header=lambda path, head: path.suffix == ".bin" and is_llmc(head),
    ),
    "nanogpt": TokenFormat(".bin", lambda _: True, open_raw, write_raw),
}
"""By the names that `lowtide convert` takes; a path's format is the first that detects it."""
SINGLE_SUFFIXES = frozenset(row.suffix for row in FORMATS.values() if row.beside is None)
"""Suffixes of files with ids that need no second file."""


def guess_format(path: Path) -> str:
    """Guess the format of files from their names and headers."""
    return next(name for name, row in FORMATS.items() if row.detect(path))


def open_token_file(path: Path, *, dtype: np.dtype[Any] | None = None) -> TokenFile:
    """Open a single file by its header, or as raw ids without one."""
    require_file(path)
    with path.open("rb", buffering=0) as file:
        head = file.read(16)
    for row in FORMATS.values():
        if row.has_header is not None and row.has_header(path, head):
            return row.open(path, Opening())
    return open_raw(path, Opening(dtype))


def open_source(
    path: Path,
    *,
    kind: str,
    dtype: np.dtype[Any] | None = None,
    end_id: int | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> dict[str, TokenStream]:
    """Find the ids at `path`: splits by their names if possible, else one split named all.

    A test file is left out, so that it is not trained on.
    """
    row, given = FORMATS[kind], Opening(dtype, on_notice)
    by_folder = kind == "mypt"
    groups: dict[str, list[TokenFile]] = {}
    for file in row.list_files(path):
        split = file.parent.name if by_folder else _split_by_name(file)
        if split == "test" and path.is_dir():
            on_notice(f"{file} is left out, by its name it is for testing")
            continue
        require_file(file)
        groups.setdefault(split, []).append(row.open(file, given))
    if not groups:
        raise DataError(f"no files of the kind {kind} here", path=path)
    if not by_folder and len(groups) == 1:
        groups = {"all": next(iter(groups.values()))}
    return {split: TokenStream(parts, end_id) for split, parts in groups.items()}


def _split_by_name(path: Path) -> str:
    words = set(re.split("[^a-z]+", path.stem.lower()))
    if words & {"val", "valid", "validation", "eval", "dev"}:
        return "val"
    return "test" if "test" in words else "train"


def list_source_files(path: Path, *, kind: str) -> list[Path]:
    """All files that an import reads."""
    row = FORMATS[kind]
    found = row.list_files(path)
    if row.beside is not None:
        others = [file.with_suffix(row.beside) for file in found]
        found += [file for file in others if file.exists()]
    return found


def load_source_tokenizer(path: Path, *, kind: str, named: str) -> Tokenizer:
    """The tokenizer of ids to import: the named one, or the one stored with them."""
    return load_mypt_tokenizer(path, named) if kind == "mypt" else Tokenizer.load(named)


def open_dataset(info: DatasetInfo, split: str) -> TokenStream:
    """The shards of a dataset's split as one stream."""
    return TokenStream(
        mark_borders([open_shard(shard, info.dtype) for shard in info.shards[split]])
    )
