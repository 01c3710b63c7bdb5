"""Types of the native core; each part of `native/` has its own section."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

Uint64s = npt.NDArray[np.uint64]
FileName = str | bytes | PathLike[str]

# loader

class ReadError(Exception):
    """args: kind ("open", "read", "too_short", "id_too_large", "documents"), path, position,
    value."""

class TokenStream:
    def __init__(
        self,
        shards: Sequence[tuple[FileName, int, int, FileName, int]],
        *,
        item_bytes: int,
        id_limit: int,
        max_open_files: int,
    ) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    def gather(
        self,
        starts: Uint64s,
        rows: Uint64s | None,
        inputs: npt.NDArray[Any],
        targets: npt.NDArray[Any],
    ) -> None: ...
    def read(self, first: int, out: npt.NDArray[Any], /) -> None: ...
    def align_to_documents(self, starts: Uint64s, reach: int, /) -> None: ...
    def segments(
        self,
        starts: Uint64s,
        rows: Uint64s | None,
        segment_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
    ) -> None: ...

class MixtureSchedule:
    def __init__(self, weights: list[int], /) -> None: ...
    def slots(self, first: int, sources: npt.NDArray[np.uint32], taken: Uint64s, /) -> None: ...

def shuffled_indices(seed: int, size: int, first: int, out: Uint64s, /) -> None: ...
def random_indices(seed: int, size: int, first: int, out: Uint64s, /) -> None: ...
def empty_rows(
    num_rows: int, length: int, item_bytes: int, is_signed: bool, /
) -> npt.NDArray[Any]: ...
def window_starts(
    indices: npt.NDArray[Any], num_windows: int, stride: int, last_start: int, /
) -> Uint64s: ...

# corpus

Bytes = npt.NDArray[np.uint8] | memoryview | bytes

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
    def text(self) -> memoryview: ...
    @property
    def documents(self) -> memoryview: ...
    @property
    def hashes(self) -> memoryview: ...
    @property
    def radix_ends(self) -> memoryview: ...
    @property
    def characters(self) -> memoryview: ...
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
    def list_texts(self) -> list[bytes]: ...
    @property
    def rows(self) -> memoryview: ...
    @property
    def counts(self) -> list[tuple[int, int]]: ...
    @property
    def samples(self) -> list[tuple[int, bytes]]: ...

class DuplicateFinder:
    def __init__(self, capacity: int) -> None: ...
    def add(self, rows: Bytes, pass_index: int, num_passes: int) -> bool: ...
    def take(self) -> memoryview: ...

def pick_hashes(
    hashes: Bytes, documents: Bytes, remnants: Sequence[int], all: bool
) -> memoryview: ...
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
def measure_repetition(line: bytes, vectors: bool = True) -> float: ...
def scan_line(text: bytes, vectors: bool = True) -> tuple[int, bool, int]: ...
def find_bytes(text: bytes, wanted: bytes, vectors: bool = True) -> int: ...
def clean_text(
    data: Bytes,
    separator: bytes,
    segments: Sequence[tuple[int, int, int, int]],
    continues: bool,
    continued: bool,
    options: CleanOptions,
    compose: Callable[[bytes], bytes],
) -> CleanedBlock: ...
def extract_jsonl(
    data: Bytes, field: str
) -> tuple[npt.NDArray[np.uint8], Uint64s, Uint64s, Uint64s]: ...
def extract_long_row(row_file: int, field: str, text_file: int) -> int: ...
def keep_documents(
    text: Bytes, documents: Bytes, removed: Bytes, options: CleanOptions
) -> KeptDocuments: ...
def keep_freed_memory(keep: bool) -> None: ...

# dataset

class CharacterTable:
    def __init__(
        self, codes: npt.NDArray[np.uint32], ids: npt.NDArray[np.uint32], unknown: int
    ) -> None: ...

class EncodedBlock:
    @property
    def index(self) -> memoryview: ...
    @property
    def ids(self) -> memoryview: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def max_id(self) -> int: ...
    @property
    def sources(self) -> list[tuple[int, int, int]]: ...
    @property
    def remnants(self) -> list[int]: ...
    @property
    def counts(self) -> list[tuple[int, int]]: ...
    @property
    def samples(self) -> list[tuple[int, bytes]]: ...

def encode_block(
    coder: Any,
    text: Bytes,
    documents: Bytes,
    removed: Bytes,
    cleaning: CleanOptions,
    *,
    shuffle: bool,
    seed: int,
    block: int,
    carried: tuple[int, int, int] | None,
    end_id: int,
    id_bytes: int,
) -> EncodedBlock: ...
def shuffle_key(seed: int, input_index: int, ordinal: int) -> int: ...

class RangeCounter:
    def __init__(self, bounds: Sequence[int], val_limit: int) -> None: ...
    def add(self, index: Bytes) -> None: ...
    @property
    def tokens(self) -> list[list[int]]: ...
    @property
    def documents(self) -> list[int]: ...

class RangeRows:
    def __init__(self) -> None: ...
    def add(
        self,
        path: bytes,
        index: Bytes,
        ids_at: int,
        id_bytes: int,
        low: int,
        high: int,
        val: bool | None,
        val_limit: int,
    ) -> None: ...
    def finish(self) -> None: ...

class RangeReader:
    def __init__(self, range: RangeRows, id_bytes: int, max_open_files: int) -> None: ...
    def read(self, first: int, last: int, id_bytes: int) -> tuple[memoryview, memoryview]: ...

def measure_ids(ids: Bytes, id_bytes: int) -> tuple[int, int]: ...

# tokenizer

def split(pattern: str, text: bytes, at_most: str = "avx512") -> npt.NDArray[np.uint32]: ...
def character_classes() -> npt.NDArray[np.uint8]: ...
def safe_cuts(text: bytes, specials: list[bytes]) -> Uint64s: ...
def last_cut(text: bytes, specials: list[bytes]) -> int: ...
def rules_by_rank(tokens: Sequence[bytes]) -> npt.NDArray[np.uint32]: ...
def find_json_sections(text: bytes) -> tuple[int, int, int, int] | None: ...
def read_byte_level(
    vocab: bytes, merges: bytes, *, merges_are_json: bool, specials: Sequence[bytes]
) -> tuple[list[bytes], list[int], memoryview] | None: ...

# (id, text, text as JSON)
SpecialRows = Sequence[tuple[int, bytes, bytes]]

def write_vocab_json(
    tokens: Sequence[bytes], specials: SpecialRows, *, between: bytes, colon: bytes
) -> bytes | None: ...
def write_merges(
    tokens: Sequence[bytes],
    rows: npt.NDArray[np.uint32] | memoryview,
    specials: SpecialRows,
    *,
    as_json: bool,
) -> bytes | None: ...
def join_with_lengths(tokens: Sequence[bytes]) -> bytes: ...

class PieceCounter:
    def __init__(
        self,
        pattern: str,
        specials: list[bytes],
        *,
        num_threads: int,
        table_bytes: int,
        window_bytes: int,
        spill_dir: FileName,
    ) -> None: ...
    def count_file(self, path: FileName, begin: int, stop: int, end: int) -> int: ...
    def count_texts(self, texts: list[bytes]) -> None: ...
    def checkpoint(self) -> list[str]: ...
    def adopt(self, runs: Sequence[FileName]) -> None: ...
    def drain(self) -> list[tuple[bytes, int]]: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def pieces_done(self) -> int: ...
    @property
    def distinct(self) -> int: ...
    @property
    def distinct_bytes(self) -> int: ...
    @property
    def largest_window(self) -> int: ...
    @property
    def longest_piece(self) -> int: ...
    @property
    def spilled_runs(self) -> int: ...

class MergeLearner:
    def __init__(self, tie_break: str, *, file_dir: FileName, resident_limit: int) -> None: ...
    def take(self, counter: PieceCounter) -> None: ...
    def take_items(self, items: list[tuple[bytes, int]]) -> None: ...
    def build(self) -> None: ...
    def learn(self, target: int, max_merges: int, min_frequency: int) -> bool: ...
    def merges(self) -> npt.NDArray[np.uint32]: ...
    @property
    def merges_done(self) -> int: ...
    @property
    def num_words(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class CompactLearner:
    def __init__(self, tie_break: str, *, memory_bytes: int) -> None: ...
    def take(self, counter: PieceCounter) -> None: ...
    def take_items(self, items: list[tuple[bytes, int]]) -> None: ...
    def build(self) -> None: ...
    def learn(self, target: int, max_merges: int, min_frequency: int) -> bool: ...
    def merges(self) -> npt.NDArray[np.uint32]: ...
    @property
    def merges_done(self) -> int: ...
    @property
    def num_words(self) -> int: ...

class WideCompactLearner(CompactLearner): ...

class Vocabulary:
    def __init__(
        self,
        pattern: str,
        tokens: Sequence[bytes],
        merges: npt.NDArray[np.uint32] | memoryview | None,
        specials: list[tuple[bytes, int]],
        *,
        whole_pieces: bool,
        cache_bytes: int,
    ) -> None: ...
    def encode(self, text: bytes, specials: bool) -> npt.NDArray[np.uint32]: ...
    def encode_many(
        self, texts: list[bytes], specials: bool, num_threads: int
    ) -> tuple[npt.NDArray[np.uint32], Uint64s]: ...
    def encode_file(
        self,
        *,
        input_path: FileName,
        begin: int,
        stop: int,
        end: int,
        output_file: int,
        output_path: FileName,
        output_offset: int,
        id_bytes: int,
        specials: bool,
        num_threads: int,
        window_bytes: int,
        largest_window: int = ...,
    ) -> tuple[int, int]: ...
    def merge_pieces(self, pieces: list[bytes], at_most: str = "avx512") -> list[list[int]]: ...
    def merge_long(self, piece: bytes, chunk: int) -> list[int]: ...
    def find_special(self, text: bytes) -> int: ...
    def decode(self, ids: npt.NDArray[np.uint32]) -> bytes: ...

# model: addresses of tensors, then sizes, then the number of threads
def rms_norm(
    x: int,
    weight: int,
    eps: float,
    y: int,
    scales: int,
    num_rows: int,
    width: int,
    num_threads: int,
    /,
) -> None: ...
def rms_norm_backward(
    gradient: int,
    x: int,
    weight: int,
    scales: int,
    x_gradient: int,
    weight_gradient: int,
    num_rows: int,
    width: int,
    num_threads: int,
    /,
) -> None: ...
def swiglu(x: int, y: int, num_rows: int, width: int, num_threads: int, /) -> None: ...
def swiglu_backward(
    gradient: int, x: int, x_gradient: int, num_rows: int, width: int, num_threads: int, /
) -> None: ...
def gelu(x: int, y: int, size: int, num_threads: int, /) -> None: ...
def gelu_backward(
    gradient: int, x: int, x_gradient: int, size: int, num_threads: int, /
) -> None: ...
def cross_entropy(
    logits: int, targets: int, num_rows: int, width: int, num_threads: int, /
) -> float: ...
def turn_heads(
    x: int,
    tables: Sequence[int],
    eps: float,
    sizes: Sequence[int],
    outputs: Sequence[int],
    num_threads: int,
    /,
) -> None: ...
def turn_heads_backward(
    gradients: Sequence[int],
    strides: Sequence[int],
    x: int,
    tables: Sequence[int],
    eps: float,
    sizes: Sequence[int],
    x_gradient: int,
    query_weight_gradient: int,
    key_weight_gradient: int,
    num_threads: int,
    /,
) -> None: ...
