"""The destination of a dataset's files: a shared folder, or a prefix of an object store.

In:      files written into a folder (`stage`)
Out:     in a folder: the files in their final places; in a store: objects, the metadata last
Memory:  UPLOAD_BYTES while a file is uploaded
Disk:    for a store the shard being written, on this machine (TMPDIR)

All workers write the same bytes to a file, so uploading an object twice does no harm. The
metadata, which completes the dataset, is created only if absent.

Another job may finish its dataset here meanwhile: a user started it with another work folder, or
removed ours while one of its workers was suspended. Shards that this dataset does not list would be
taken for shards moved in by hand, so `publish` and the last task withdraw them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from lowtide.dataset import layout
from lowtide.dataset.claims import ADDING_NAME, list_shard_names, read_present_names
from lowtide.dataset.sharding import remove_other_shards
from lowtide.dataset.tokenfiles.shards import documents_path, shard_number
from lowtide.dataset.workfolder import has_plan
from lowtide.engine.heldoutputs import hold_output, require_writable
from lowtide.engine.records import Records
from lowtide.errors import UsageError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME, WORK_NAME
from lowtide.publishing import publish_files
from lowtide.scratch import scratch_folder
from lowtide.stores.objects import open_store
from lowtide.stores.paths import StorePath, is_stored
from lowtide.stores.urls import StoreURL

__all__ = ["NEW_DIR", "Destination", "find_waiting", "open_destination"]

NEW_DIR = "new"
"""Folder in the work folder for new shards of an append to a dataset on a disk."""

_MOST_CREATED_BYTES = 8 << 20


class Destination(Protocol):
    """The operations on the output location that the stages writing a dataset need."""

    def prepare(self) -> None:
        """Raise an error for an unwritable location, before the first task."""
        ...

    def find_taken(self, *, tokenizer: bool) -> str | None:
        """A file in the way of a new dataset, or work of another engine; None if there is none.

        Without `tokenizer`, an existing tokenizer is not reported.
        """
        ...

    def stage(self, *, locked: bool = False) -> contextlib.AbstractContextManager[Path]:
        """A folder to write files of the dataset into; `locked` excludes other commands."""
        ...

    @property
    def takes_one(self) -> bool:
        """True if a shard should be published at once, not with others, which is quicker."""
        ...

    def publish(self, root: Path, rows: Sequence[tuple[Path, Path]]) -> None:
        """Move finished files of the staging folder, which have no names yet, to their final paths.

        A dataset of another job that was finished here meanwhile is an error.
        """
        ...

    def withdraw(self, names: Iterable[Path]) -> None:
        """Remove those of our own shards that a finished dataset here does not list.

        If there are any, it is another job's, which is an error.
        """
        ...

    def keep_only(self, names: Collection[Path]) -> Path | None:
        """Remove shards that an abandoned command left here.

        Returns the first of `names` that does not exist with both its files, and then removes
        nothing; None if all exist.
        """
        ...

    def finish(self, root: Path) -> None:
        """Move the rest of the staging folder to its final paths, the metadata last."""
        ...


def open_destination(out_dir: Path) -> Destination:
    """The location given by `--out-dir`."""
    return _StorePrefix(StorePath(out_dir).url) if is_stored(out_dir) else _DiskFolder(out_dir)


def find_waiting(root: Path, records: Records) -> Path:
    """The location of new shards of an append: the work folder, or the store of the dataset.

    There they are under a prefix of the plan, and later copied within the store.
    """
    if not is_stored(root):
        return records.folder / NEW_DIR
    return root / ADDING_NAME / (records.plan or "")


class _DiskFolder:
    """Files are written directly to their final paths."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        require_writable(self._root)

    def find_taken(self, *, tokenizer: bool) -> str | None:
        found = [path for split in layout.SPLITS for path in (self._root / split).glob("*.bin")]
        if found:
            return min(path.name for path in found)
        if has_plan(self._root):
            return WORK_NAME
        return TOKENIZER_NAME if tokenizer and (self._root / TOKENIZER_NAME).exists() else None

    @contextlib.contextmanager
    def stage(self, *, locked: bool = False) -> Generator[Path]:
        with contextlib.ExitStack() as stack:
            if locked:
                stack.enter_context(hold_output(self._root, create_folder=True))
            yield self._root

    @property
    def takes_one(self) -> bool:
        return False

    def publish(self, root: Path, rows: Sequence[tuple[Path, Path]]) -> None:
        publish_files(rows)
        self.withdraw(_shards_of(root, rows))

    def withdraw(self, names: Iterable[Path]) -> None:
        if not (self._root / METADATA_NAME).exists():
            return
        others = _unlisted(names, list_shard_names(layout.read_metadata(self._root)))
        for name in others:
            for file in _files_of(name):
                (self._root / file).unlink(missing_ok=True)
        if others:
            raise _finished_meanwhile(self._root)

    def keep_only(self, names: Collection[Path]) -> Path | None:
        missing = next((name for name in names if not self._has(name)), None)
        if missing is None:
            remove_other_shards(self._root, [self._root / name for name in names])
        return missing

    def _has(self, shard: Path) -> bool:
        return all((self._root / name).is_file() for name in _files_of(shard))

    def finish(self, root: Path) -> None:
        """Nothing to do: all files are in place."""


def _files_of(shard: Path) -> tuple[Path, Path]:
    return shard, documents_path(shard)


def _shards_of(root: Path, rows: Iterable[tuple[Path, Path]]) -> list[Path]:
    """The names of the shards among finished files."""
    paths = (path for _, path in rows)
    return [path.relative_to(root) for path in paths if documents_path(path) != path]


def _unlisted(names: Iterable[Path], listed: Collection[str]) -> list[Path]:
    return [name for name in names if name.as_posix() not in listed]


def _finished_meanwhile(root: Path | StoreURL) -> UsageError:
    return UsageError(
        "another dataset was finished here meanwhile",
        path=str(root),
        next_step="choose another --out-dir",
    )


class _StorePrefix:
    """Files are written to a local disk, and uploaded."""

    def __init__(self, url: StoreURL) -> None:
        self._url = url

    def prepare(self) -> None:
        from lowtide.engine.storefolders import refuse_overwriting  # imported only if it is used

        refuse_overwriting(self._url, ".probe-")

    def _iter_names(self) -> Iterable[StoreURL]:
        for split in layout.SPLITS:
            for info in open_store(self._url).iter_objects(self._url / split):
                yield info.url

    def find_taken(self, *, tokenizer: bool) -> str | None:
        if tokenizer and StorePath(str(self._url / TOKENIZER_NAME)).exists():
            return TOKENIZER_NAME
        return next((url.name for url in self._iter_names() if url.name.endswith(".bin")), None)

    def stage(self, *, locked: bool = False) -> contextlib.AbstractContextManager[Path]:
        return scratch_folder("dataset")

    @property
    def takes_one(self) -> bool:
        """True: a group of shards may not fit on this disk."""
        return True

    def publish(self, root: Path, rows: Sequence[tuple[Path, Path]]) -> None:
        for unnamed, path in rows:
            self._upload(unnamed, path.relative_to(root))
        self.withdraw(_shards_of(root, rows))

    def withdraw(self, names: Iterable[Path]) -> None:
        if not self._is_finished():
            return
        store = open_store(self._url)
        others = _unlisted(names, read_present_names(store, self._url))
        files = (file for name in others for file in _files_of(name))
        if others:
            store.delete([self._url / file.as_posix() for file in files])
            raise _finished_meanwhile(self._url)

    def _upload(self, path: Path, name: Path) -> None:
        open_store(self._url).upload(self._url / name.as_posix(), path)
        path.unlink()

    def keep_only(self, names: Collection[Path]) -> Path | None:
        found = {str(url): url for url in self._iter_names()}

        def has(shard: Path) -> bool:
            return all(str(self._url / name.as_posix()) in found for name in _files_of(shard))

        missing = next((name for name in names if not has(name)), None)
        if missing is None:
            self._remove_others(names, found.values())
        return missing

    def _remove_others(self, names: Iterable[Path], found: Iterable[StoreURL]) -> None:
        kept = {str(self._url / name.with_suffix("").as_posix()) for name in names}
        others = [
            url
            for url in found
            if shard_number(url.name) is not None and str(url).rpartition(".")[0] not in kept
        ]
        # There is no lock: another worker may finish meanwhile, and others add shards to the
        # dataset. None of the listed shards is theirs if there is no metadata after the listing.
        if others and not self._is_finished():
            open_store(self._url).delete(others)

    def _is_finished(self) -> bool:
        return StorePath(str(self._url / METADATA_NAME)).exists()

    def finish(self, root: Path) -> None:
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            if path != root / METADATA_NAME:
                self._upload(path, path.relative_to(root))
        self._create_metadata(root / METADATA_NAME)

    def _create_metadata(self, path: Path) -> None:
        store, url = open_store(self._url), self._url / METADATA_NAME
        is_large = path.stat().st_size > _MOST_CREATED_BYTES  # with a hundred thousand inputs
        if is_large and not self._is_finished():
            store.upload(url, path)
        elif is_large or store.create(url, path.read_bytes()) is None:
            raise _finished_meanwhile(self._url)
