"""Check that a finished dataset still has all of its files, when the same command is run again.

In:      an opened dataset (layout has checked the sizes of its shards)
Out:     DataError that names a file that is missing, truncated or replaced
Memory:  the tokenizer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lowtide.dataset import layout
from lowtide.dataset.seen import ROW_BYTES
from lowtide.dataset.storeddatasets import open_small_files
from lowtide.dataset.tokenfiles.intact import require_intact
from lowtide.dataset.tokenfiles.shards import documents_path
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME
from lowtide.stores.paths import checksum_path, is_stored
from lowtide.tokenizer import Tokenizer

__all__ = [
    "check_seen",
    "check_tokenizer",
    "require_counted_documents",
    "require_kept_hashes",
    "require_whole",
    "require_written_settings",
]


def require_whole(info: layout.DatasetInfo) -> None:
    """Refuse a finished dataset with a missing file or one of another size.

    For the same command given again. The sizes of its shards were checked when it was opened; the
    tokenizer and the logs are read, and checked by their checksums. The bytes of all other files
    are only checked by `verify_dataset`, which reads them.
    """
    problems = check_tokenizer(info.root, info.metadata) + _check_logs(info.root, info.metadata)
    expected = [
        (str(row["file"]), ROW_BYTES * int(row["rows"])) for row in info.metadata.get("seen", [])
    ]
    problems += _compare_sizes(info.root, [*expected, *_expected_ends(info)])
    if problems:
        raise DataError(
            f"this dataset is finished, but not whole: {problems[0]}",
            path=info.root,
            next_step=f"see all of it with lowtide verify {info.root}; bring back the files named, "
            "or prepare the text again in another folder",
        )


def _expected_ends(info: layout.DatasetInfo) -> Iterator[tuple[str, int]]:
    """Names and sizes of the files of document ends."""
    for shard in chain(*info.shards.values()):
        path = documents_path(shard.path)
        if shard.checksum is not None:  # not moved in by hand, perhaps before text was added
            yield path.relative_to(info.root).as_posix(), 8 * shard.num_documents


def _compare_sizes(root: Path, expected: Iterable[tuple[str, int]]) -> list[str]:
    problems: list[str] = []
    for name, size in expected:
        path = root / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            there = "missing" if found is None else f"{found} bytes"
            problems.append(f"{name}: {there}, expected {size} bytes")
    return problems


def require_written_settings(info: layout.DatasetInfo) -> None:
    """Refuse settings that were edited by hand: text would be added with others."""
    if problems := layout.check_settings(info.metadata):
        raise DataError(
            problems[0],
            path=info.root / METADATA_NAME,
            next_step=f"bring back the file as lowtide wrote it: lowtide verify {info.root}; for "
            "other settings prepare all text again, in another folder",
        )


def require_counted_documents(info: layout.DatasetInfo) -> None:
    """Refuse metadata with other counts of documents than there are ends: totals are sums of them.

    In a store, where each size is a request, `verify` alone compares them.
    """
    problems = [] if is_stored(info.root) else _compare_sizes(info.root, _expected_ends(info))
    if problems:
        raise DataError(
            f"{METADATA_NAME} and the files of document ends differ: {problems[0]}",
            path=info.root,
            next_step=f"see all of it with lowtide verify {info.root}; bring back the files as "
            "lowtide wrote them",
        )


def check_tokenizer(root: Path, metadata: dict[str, Any]) -> list[str]:
    try:
        with open_small_files(root) as folder:
            tokenizer = Tokenizer.load(folder)
    except DataError as error:
        return [f"{TOKENIZER_NAME}: {error.message}"]
    problems: list[str] = []
    if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
        problems.append(
            f"{TOKENIZER_NAME}: fingerprint {tokenizer.fingerprint}, "
            f"the ids were made with {metadata['tokenizer_fingerprint']}"
        )
    if tokenizer.vocab_size != metadata["vocab_size"]:
        problems.append(
            f"{TOKENIZER_NAME}: vocabulary {tokenizer.vocab_size}, "
            f"{METADATA_NAME} says {metadata['vocab_size']}"
        )
    return problems


def require_kept_hashes(root: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse changed or damaged hashes, which `append` compares new text with.

    Missing files, and damaged counts of n-grams, are reported by the code that opens them.
    """
    for row in metadata.get("seen", ()):
        path = root / str(row["file"])
        if path.is_file():
            require_intact(path, row.get("xxh3_128"))


def check_seen(root: Path, metadata: dict[str, Any]) -> list[str]:
    """Compare the hashes that append needs, and the logs, with the metadata."""
    return _compare_files(root, metadata.get("seen", [])) + _check_logs(root, metadata)


def _check_logs(root: Path, metadata: dict[str, Any]) -> list[str]:
    """Compare the logs of near copies and of evaluation items with the metadata."""
    logs = [
        described[name]
        for described in (metadata, *metadata.get("appended", ()))
        for name in ("near_duplicates", "decontamination")
        if name in described
    ]
    return _compare_files(root, [*logs, *(row["counts"] for row in logs if "counts" in row)])


def _compare_files(root: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    problems: list[str] = []
    for row in rows:
        try:
            name, checksum = str(row["file"]), row["xxh3_128"]
        except (KeyError, TypeError) as error:
            problems.append(f"{METADATA_NAME}: a damaged row of hashes ({error!r})")
            continue
        if not (root / name).is_file():
            problems.append(f"{name}: missing")
        elif checksum_path(root / name) != checksum:
            problems.append(f"{name}: another checksum than {METADATA_NAME} says")
    return problems
