"""Types of the native core; each part of `native/` has its own section."""

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
