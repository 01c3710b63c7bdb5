"""Claims: small objects that reserve file names for an append to a dataset in a store.

In:      objects DATASET/.adding/NNNNN.json, one for each append that is about to finish
Out:     claims; which shards missing from the metadata belong to an append in progress
Memory:  a claim for each append in progress; the names of all shards if there is one

The names of the files that an append adds (shards, logs, hashes) are known beforehand. Before the
first of them is written, a claim on them is created, only if absent, so that only one append writes
them; it is removed after the metadata lists them. A reader that meanwhile finds shards missing from
its metadata looks for a claim first and then reads the metadata again: a claim is only removed
after the metadata has been replaced.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lowtide.dataset.layout import SPLITS, read_metadata
from lowtide.dataset.tokenfiles.shards import find_tag
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_folder
from lowtide.stores.localcopy import copy_object
from lowtide.stores.objects import Store
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError
from lowtide.stores.urls import StoreURL

__all__ = [
    "ADDING_NAME",
    "Additions",
    "Claim",
    "drop_claims",
    "list_claims",
    "list_shard_names",
    "read_present_names",
    "take_claim",
]

ADDING_NAME = ".adding"
"""Folder of claims, and of new shards before they are listed."""
_MOST_CLAIM_BYTES = 1 << 20


@dataclass(frozen=True)
class Claim:
    """The exclusive right to write the files of the append with a number."""

    number: int
    """Number of the append, from 1 on."""
    plan: str
    """Checksum of its owner's plan."""
    tag: str
    """Tag in the names of its shards."""
    work_dir: str
    """For users."""

    def url(self, dataset: StoreURL) -> StoreURL:
        """Its URL."""
        return dataset / f"{ADDING_NAME}/{self.number:05d}.json"


def take_claim(store: Store, dataset: StoreURL, claim: Claim) -> None:
    """Create a claim, or check that the existing one has the same plan; another's is an error."""
    url, data = claim.url(dataset), json.dumps(asdict(claim)).encode()
    while store.create(url, data) is None:
        with contextlib.suppress(ObjectMissingError):  # its owner has just finished
            other = _read_claim(store, url)
            if other is not None and other.plan == claim.plan:
                return
            raise _claimed(url, claim, other)


def _claimed(url: StoreURL, mine: Claim, other: Claim | None) -> DataError:
    """The error for names that another append is about to write."""
    where = "" if other is None else f", whose workers meet in {other.work_dir}"
    shards = "" if other is None else f"the shards with {other.tag} in their names, and then "
    return DataError(
        f"another append is about to end here{where}",
        path=str(url),
        next_step="let it end, by its own command if it was killed; then remove "
        f"{mine.work_dir}, and give this command again. If it was given up, and nothing of it "
        f"runs, remove {shards}{url} instead",
    )


def _read_claim(store: Store, url: StoreURL) -> Claim | None:
    """Read the claim in an object; None if it is not a claim."""
    data = bytes(store.read_whole(url, most_bytes=_MOST_CLAIM_BYTES)[1])
    try:
        row = json.loads(data)
        return Claim(int(row["number"]), str(row["plan"]), str(row["tag"]), str(row["work_dir"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def list_claims(store: Store, dataset: StoreURL) -> list[Claim]:
    """All claims; one that is removed meanwhile may be missing."""
    found: list[Claim] = []
    for name in store.list_names(dataset / ADDING_NAME):
        if name.endswith(".json"):
            with contextlib.suppress(ObjectMissingError):
                claim = _read_claim(store, dataset / f"{ADDING_NAME}/{name}")
                found += [] if claim is None else [claim]
    return found


def drop_claims(store: Store, dataset: StoreURL, plan: str) -> None:
    """Remove a plan's claim, after removing its shards that no metadata describes."""
    claims = [claim for claim in list_claims(store, dataset) if claim.plan == plan]
    if not claims:
        return
    known = {name.removesuffix(".bin") for name in read_present_names(store, dataset)}
    tags = {claim.tag for claim in claims}
    for split in SPLITS:
        store.delete([
            info.url
            for info in store.iter_objects(dataset / split)
            if find_tag(info.url.name) in tags
            and f"{split}/{info.url.name.rpartition('.')[0]}" not in known
        ])  # fmt: skip
    store.delete([claim.url(dataset) for claim in claims])


def read_present_names(store: Store, dataset: StoreURL) -> set[str]:
    """The names of all shards in the current metadata, as train/NAME."""
    with scratch_folder("dataset") as folder:
        while True:
            with contextlib.suppress(ObjectChangedError):
                copy_object(store, dataset / METADATA_NAME, folder / METADATA_NAME)
                break
        return list_shard_names(read_metadata(folder))


def list_shard_names(metadata: Mapping[str, Any]) -> set[str]:
    """The names of all shards that metadata lists, as train/NAME."""
    rows = metadata["shards"]
    return {str(row["file"]) for split in SPLITS for row in rows.get(split, [])}


class Additions:
    """Which unlisted shards belong to an append in progress; looked up when one is found."""

    def __init__(self, store: Store, dataset: StoreURL) -> None:
        self._store = store
        self._dataset = dataset
        self._tags: set[str] = set()
        self._names: set[str] = set()

    def has(self, split: str, name: str) -> bool:
        """True if a shard is about to be added, or was added after the reader read the metadata."""
        return self._knows(split, name) or any(self._knows(split, name) for _ in self._look())

    def _knows(self, split: str, name: str) -> bool:
        return find_tag(name) in self._tags or f"{split}/{name}" in self._names

    def _look(self) -> Iterator[None]:
        """Read the claims, then the metadata, which is replaced before a claim is removed."""
        self._tags = {claim.tag for claim in list_claims(self._store, self._dataset)}
        yield
        with contextlib.suppress(DataError):  # the caller reports the shard instead
            self._names = read_present_names(self._store, self._dataset)
        yield
