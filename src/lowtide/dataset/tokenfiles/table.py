"""The formats of files of ids: a row each, and how a path's format is found.

In:      a path; the name of a format where it was given
Out:     TokenFormat rows; TokenStream per split; TokenFile of a single file
Memory:  the first 16 bytes of a file, a row for each file
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.dataset.layout import DatasetInfo
from lowtide.dataset.tokenfiles.llmc import is_llmc, open_llmc, write_llmc
from lowtide.dataset.tokenfiles.megatron import open_megatron, write_megatron
from lowtide.dataset.tokenfiles.mypt import list_mypt_files, load_mypt_tokenizer, open_mypt
from lowtide.dataset.tokenfiles.npy import is_npy, open_npy, write_npy
from lowtide.dataset.tokenfiles.raw import open_raw, write_raw
from lowtide.dataset.tokenfiles.shards import open_shard
from lowtide.dataset.tokenfiles.streams import Opening, TokenFile, TokenStream, WrittenFiles
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME
from lowtide.files import require_file
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.arrays import np

__all__ = [
    "FORMATS",
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

    detect: Callable[[Path], bool]
    """True for a file or folder of this format."""
    open: Callable[[Path, Opening], TokenFile]
    write: Callable[[Path, str, TokenStream, np.dtype[Any], WrittenFiles], list[Path]] | None
    """Write a split into a folder, by its name; None where nothing is written for it."""
    list_files: Callable[[Path], list[Path]]
    """The files of a folder that `open` takes; for a file, that file."""
    beside: str | None = None
    """The suffix of a second file, which belongs to each of those."""


def _names(path: Path) -> list[Path]:
    return sorted(path.glob("*")) if path.is_dir() else [path]


def _begins(path: Path, check: Callable[[bytes], bool], suffix: str) -> bool:
    """True if the first file with a suffix begins as `check` says."""
    for name in _names(path):
        if name.suffix == suffix and name.is_file():
            with name.open("rb") as file:
                return check(file.read(16))
    return False


def _has_metadata(path: Path, *, ours: bool) -> bool:
    metadata = path / METADATA_NAME
    if not metadata.is_file():  # a pipe in its place would be waited for
        return False
    with metadata.open("rb") as file:  # sources, of which there may be many, come after
        return (b'"format_version"' in file.read(_METADATA_BEGINNING)) == ours


def _has_index(path: Path) -> bool:
    names = _names(path)
    return any(name.suffix == ".idx" or name.with_suffix(".idx").is_file() for name in names)


def _list_by_suffix(suffix: str) -> Callable[[Path], list[Path]]:
    def list_files(path: Path) -> list[Path]:
        if path.is_dir():
            return sorted(path.glob(f"*{suffix}"))
        if suffix == ".idx":
            path = path.with_suffix(suffix)
        if not path.is_file():
            raise DataError("no such file", path=path, next_step="check the path for typing errors")
        return [path]

    return list_files


FORMATS = {
    "lowtide": TokenFormat(
        lambda path: _has_metadata(path, ours=True), open_raw, None, _list_by_suffix(".bin")
    ),
    "mypt": TokenFormat(
        lambda path: _has_metadata(path, ours=False), open_mypt, None, list_mypt_files
    ),
    "megatron": TokenFormat(
        _has_index, open_megatron, write_megatron, _list_by_suffix(".idx"), beside=".bin"
    ),
    "npy": TokenFormat(
        lambda path: any(name.suffix == ".npy" for name in _names(path)),
        open_npy,
        write_npy,
        _list_by_suffix(".npy"),
    ),
    "llmc": TokenFormat(
        lambda path: _begins(path, is_llmc, ".bin"), open_llmc, write_llmc, _list_by_suffix(".bin")
    ),
    "nanogpt": TokenFormat(lambda _: True, open_raw, write_raw, _list_by_suffix(".bin")),
}
"""By the names that `lowtide convert` takes; the first that knows a path again is its format."""


def guess_format(path: Path) -> str:
    """Whose files these are, by what they look like."""
    return next(name for name, row in FORMATS.items() if row.detect(path))


def open_token_file(path: Path, *, dtype: np.dtype[Any] | None = None) -> TokenFile:
    """Open a single file by its first bytes: .npy, llm.c's .bin, or ids without a header."""
    require_file(path)
    with path.open("rb", buffering=0) as file:
        head = file.read(16)
    if is_npy(head):
        return open_npy(path, Opening())
    if is_llmc(head) and path.suffix == ".bin":
        return open_llmc(path, Opening())
    return open_raw(path, Opening(dtype))


def open_source(
    path: Path,
    *,
    kind: str,
    dtype: np.dtype[Any] | None = None,
    end_id: int | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> dict[str, TokenStream]:
    """Find the ids at `path`: splits where the names tell them, else one split named all.

    A file for testing is left out: it would be learned.
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
    """The tokenizer of ids to import: the one named, or the one that lies with them."""
    return load_mypt_tokenizer(path, named) if kind == "mypt" else Tokenizer.load(named)


def open_dataset(info: DatasetInfo, split: str) -> TokenStream:
    """The shards of a split of ours as one stream."""
    return TokenStream([open_shard(shard, info.dtype) for shard in info.shards[split]])
