"""Types of the native core; each part of `native/` has its own section."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Uint64s = npt.NDArray[np.uint64]

# loader

class ReadError(Exception):
    """args: kind ("open", "read", "too_short" or "id_too_large"), path, position, value."""

class TokenStream:
    def __init__(
        self,
        shards: list[tuple[str, int, int, str, int]],
        *,
        item_bytes: int,
        id_limit: int,
        max_open_files: int,
    ) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_open_files(self) -> int: ...
    def gather(
        self, starts: Uint64s, rows: Uint64s, inputs: npt.NDArray[Any], targets: npt.NDArray[Any], /
    ) -> None: ...
    def read(self, first: int, out: npt.NDArray[Any], /) -> None: ...
    def align_to_documents(self, starts: Uint64s, reach: int, /) -> None: ...
    def segments(
        self,
        starts: Uint64s,
        rows: Uint64s,
        segment_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        /,
    ) -> None: ...

class MixtureSchedule:
    def __init__(self, weights: list[int], /) -> None: ...
    def slots(self, first: int, sources: npt.NDArray[np.uint32], taken: Uint64s, /) -> None: ...

def shuffled_indices(seed: int, size: int, first: int, out: Uint64s, /) -> None: ...
def random_indices(seed: int, size: int, first: int, out: Uint64s, /) -> None: ...
def empty_bytes(count: int, /) -> npt.NDArray[np.uint8]: ...

# corpus

Bytes = npt.NDArray[np.uint8]

class CleanOptions:
    def __init__(self) -> None: ...
    normalize: bool
    lowercase: bool
    filter: bool
    dedup: bool
    collect_characters: bool
    min_line_chars: int
    max_line_chars: int
    min_line_words: int
    min_document_chars: int
    max_document_chars: int
    min_document_words: int
    max_repetition: float
    min_dedup_chars: int

class CleanedBlock:
    @property
    def text(self) -> Bytes: ...
    @property
    def documents(self) -> Bytes: ...
    @property
    def hashes(self) -> Bytes: ...
    @property
    def radix_ends(self) -> Bytes: ...
    @property
    def characters(self) -> Bytes: ...
    @property
    def counts(self) -> list[tuple[int, int]]: ...
    @property
    def samples(self) -> list[tuple[int, bytes]]: ...
    @property
    def documents_in(self) -> int: ...
    @property
    def lines_in(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...

class KeptDocuments:
    @property
    def text(self) -> Bytes: ...
    @property
    def begins(self) -> Bytes: ...
    @property
    def ends(self) -> Bytes: ...
    @property
    def rows(self) -> Bytes: ...
    @property
    def counts(self) -> list[tuple[int, int]]: ...
    @property
    def samples(self) -> list[tuple[int, bytes]]: ...

class DuplicateFinder:
    def __init__(self, capacity: int) -> None: ...
    def add(self, block: int, rows: Bytes, pass_index: int, num_passes: int) -> bool: ...
    def take(self) -> Uint64s: ...
    @staticmethod
    def planned_bytes(rows: int) -> int: ...

def clean_block(
    data: Bytes,
    begins: Uint64s,
    ends: Uint64s,
    input_indexes: Uint64s,
    ordinals: Uint64s,
    flags: Uint64s,
    options: CleanOptions,
    compose: Callable[[bytes], bytes],
) -> CleanedBlock: ...
def find_documents(
    data: Bytes, separator: bytes, begin: int, end: int
) -> tuple[Uint64s, Uint64s]: ...
def extract_jsonl(data: Bytes, field: str) -> tuple[Bytes, Uint64s, Uint64s, Uint64s]: ...
def keep_documents(
    text: Bytes, documents: Bytes, removed: npt.NDArray[np.uint32], options: CleanOptions
) -> KeptDocuments: ...
def gather_bytes(
    descriptors: npt.NDArray[np.int32], offsets: Uint64s, sizes: Uint64s, out: Bytes
) -> int: ...
