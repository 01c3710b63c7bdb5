"""Publish the files of an append: into a locked folder, or into a prefix of a store.

In:      new shards kept aside (destination), files of an append written into a folder (`hold`)
Out:     in a folder: files moved in, under the dataset's lock; in a store: objects copied in under
         a claim (claims), and the metadata replaced if its ETag is unchanged
Memory:  for a store: the metadata, while it is uploaded
Disk:    for a store: logs, hashes and metadata of this append (TMPDIR)

Existing shards are never changed, and the metadata is replaced last, so a reader sees either the
old or the new dataset completely.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.claims import ADDING_NAME, Claim, drop_claims, take_claim
from lowtide.dataset.grown import GrownDataset
from lowtide.dataset.storeddatasets import load_any_info, no_dataset, read_any_metadata
from lowtide.dataset.tokenfiles.shards import ShardInfo, documents_path
from lowtide.engine.heldoutputs import hold_output, require_writable
from lowtide.errors import BudgetError, DataError
from lowtide.filenames import METADATA_NAME
from lowtide.memory import format_size
from lowtide.scratch import scratch_folder
from lowtide.stores.localcopy import copy_object
from lowtide.stores.objects import Store, open_store
from lowtide.stores.paths import StorePath, is_stored
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError
from lowtide.stores.urls import StoreURL

__all__ = ["DatasetChangedError", "DatasetPlace", "open_place"]

_PROBE = "probe-"
_COPIES_AT_ONCE = 8
_MOST_COPIED_BYTES = 5 << 30  # the limit of S3 for a copy in one request

Shards = Mapping[str, Sequence[ShardInfo]]


class DatasetChangedError(DataError):
    """Another command has added text to the dataset since this work began."""

    def __init__(self, root: Path, work_dir: str) -> None:
        super().__init__(
            "the dataset has changed since this work was begun",
            path=root,
            next_step=f"remove {work_dir}, and give the command again",
        )


class DatasetPlace(Protocol):
    """The operations on the dataset's location that an append needs."""

    def prepare(self) -> None:
        """Raise an error for an unusable location, before the first task."""
        ...

    def load(self) -> tuple[str, layout.DatasetInfo]:
        """The dataset's version and its metadata, read consistently."""
        ...

    def find_version(self) -> str:
        """The dataset's version, which changes when text is added."""
        ...

    def read_metadata(self) -> dict[str, Any]:
        """The current metadata."""
        ...

    def hold(self) -> contextlib.AbstractContextManager[Path]:
        """A folder for the files of an append: on a disk the dataset itself, locked."""
        ...

    def take_in(self, waiting: Shards, grown: GrownDataset, claim: Claim) -> Shards:
        """Move new shards to their final paths; the metadata does not list them yet."""
        ...

    def finish(self, folder: Path, version: str, claim: Claim, *, most_bytes: int) -> None:
        """Move the files in the folder to their final paths, the metadata last."""
        ...

    def clear(self, plan: str | None) -> None:
        """Remove everything of a plan that is still beside the dataset."""
        ...


def open_place(root: Path) -> DatasetPlace:
    """The location of a dataset."""
    return _StoredDataset(StorePath(root)) if is_stored(root) else _DiskDataset(root)


class _DiskDataset:
    """A folder: its lock excludes other commands, and files are renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        require_writable(self._root)

    def load(self) -> tuple[str, layout.DatasetInfo]:
        while True:
            layout.read_metadata(self._root)  # an error if the folder is not a dataset
            version = self.find_version()
            info = layout.load_dataset_info(self._root)
            if self.find_version() == version:
                return version, info

    def find_version(self) -> str:
        return files.checksum_file(self._root / METADATA_NAME)

    def read_metadata(self) -> dict[str, Any]:
        return layout.read_metadata(self._root)

    @contextlib.contextmanager
    def hold(self) -> Generator[Path]:
        with hold_output(self._root):
            yield self._root

    def take_in(self, waiting: Shards, grown: GrownDataset, claim: Claim) -> Shards:
        return grown.move_in(waiting)

    def finish(self, folder: Path, version: str, claim: Claim, *, most_bytes: int) -> None:
        """Nothing to do: all files are in place."""

    def clear(self, plan: str | None) -> None:
        """Nothing to do: no files are beside the dataset."""


class _StoredDataset:
    """A prefix: numbers are claimed, and the metadata is replaced only if its ETag is unchanged."""

    def __init__(self, root: StorePath) -> None:
        self._root = root
        self._url = root.url

    @property
    def _store(self) -> Store:
        return open_store(self._url)

    def prepare(self) -> None:
        from lowtide.engine.storefolders import refuse_overwriting, refuse_replacing

        refuse_overwriting(self._url, f"{ADDING_NAME}/{_PROBE}")
        refuse_replacing(self._url, f"{ADDING_NAME}/{_PROBE}")

    def load(self) -> tuple[str, layout.DatasetInfo]:
        while True:
            version = self.find_version()
            with contextlib.suppress(ObjectChangedError):
                info = load_any_info(self._root)
                if self.find_version() == version:
                    return version, info

    def find_version(self) -> str:
        try:
            return self._store.head(self._url / METADATA_NAME).tag
        except ObjectMissingError:
            raise no_dataset(self._store, self._url) from None

    def read_metadata(self) -> dict[str, Any]:
        return read_any_metadata(self._root)

    def hold(self) -> contextlib.AbstractContextManager[Path]:
        return scratch_folder("append")

    def _require(self, version: str, claim: Claim) -> None:
        """Raise an error, before another file is written, if text was added to the dataset."""
        if self.find_version() != version:
            raise DatasetChangedError(self._root, claim.work_dir)

    def take_in(self, waiting: Shards, grown: GrownDataset, claim: Claim) -> Shards:
        take_claim(self._store, self._url, claim)
        taken = {
            split: [replace(row, path=self._root / split / row.path.name) for row in shards]
            for split, shards in waiting.items()
        }
        pairs = [
            (path_of(row), path_of(new))
            for split, shards in waiting.items()
            for row, new in zip(shards, taken[split], strict=True)
            for path_of in (_documents_of, _tokens_of)
        ]

        def copy(pair: tuple[Path, Path]) -> None:
            self._require(grown.version, claim)
            _copy(self._store, *(StorePath(path).url for path in pair))

        with ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="lowtide-copier") as pool:
            for _ in pool.map(copy, pairs):
                pass
        return taken

    def finish(self, folder: Path, version: str, claim: Claim, *, most_bytes: int) -> None:
        metadata = folder / METADATA_NAME
        size = metadata.stat().st_size
        if size > most_bytes:  # no store replaces an object conditionally by a multipart upload
            raise BudgetError(
                f"the metadata has {format_size(size)}, which are held while they are stored; "
                f"{format_size(most_bytes)} of the budget are for it",
                path=self._root,
                next_step="give the same command with more --memory: it goes on from here",
            )
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path != metadata:
                self._require(version, claim)
                self._store.upload(self._url / path.relative_to(folder).as_posix(), path)
        url = self._url / METADATA_NAME
        if self._store.exchange(url, metadata.read_bytes(), version) is None:
            raise DatasetChangedError(self._root, claim.work_dir)

    def clear(self, plan: str | None) -> None:
        if plan is None:
            return
        from lowtide.engine.storefolders import StoreFolder, is_left_probe

        drop_claims(self._store, self._url, plan)
        aside = StoreFolder(self._root / ADDING_NAME)
        probes = (name for name in aside.list_names() if name.startswith(_PROBE))
        aside.remove([plan, *filter(is_left_probe, probes)])


def _tokens_of(shard: ShardInfo) -> Path:
    return shard.path


def _documents_of(shard: ShardInfo) -> Path:
    return documents_path(shard.path)


def _copy(
    store: Store, source: StoreURL, target: StoreURL, *, most_bytes: int = _MOST_COPIED_BYTES
) -> None:
    """Copy a new file to its name; one too large for a single request via the local disk."""
    if store.head(source).size <= most_bytes:
        store.copy(source, target)
        return
    with scratch_folder("shard") as folder:
        copy_object(store, source, folder / target.name)
        store.upload(target, folder / target.name)
