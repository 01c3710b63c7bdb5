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
        shards: Sequence[tuple[FileName, int, int, FileName, int, bool]],
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

Bytes = npt.NDArray[np.uint8] | memoryview | bytes

# near copies

NEAR_ROW_BYTES: int
BUCKET_ROW_BYTES: int
PLACE_PAIR_BYTES: int
GRAM_SET_ROW_BYTES: int
NEAR_COPY_ROW_BYTES: int
NEAR_COPY_MARK: int

EVAL_HIT_BYTES: int
CUT_MARK: int
CONTAMINATED_MARK: int

class EvalGrams:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, text: bytes, item: int) -> int: ...
    def finish(self) -> None: ...
    def items(self) -> memoryview: ...
    def scan(self, text: Bytes, documents: Bytes) -> memoryview: ...

class NearSigner:
    def __init__(self, threshold: float, ngram: int, bands: int, rows: int) -> None: ...
    def sign(self, text: Bytes, documents: Bytes) -> None: ...
    @property
    def rows(self) -> memoryview: ...
    @property
    def radix_ends(self) -> memoryview: ...
    num_signed: int
    num_skipped: int

class GramSets:
    def __init__(self, ngram: int) -> None: ...
    def make(
        self, text: Bytes, documents: Bytes, block: int, wanted: Bytes, begin: int
    ) -> None: ...
    @property
    def index(self) -> memoryview: ...
    @property
    def grams(self) -> memoryview: ...

class BucketRows:
    def __init__(self, capacity: int) -> None: ...
    def add(self, rows: Bytes, block: int, first: int) -> int: ...
    def sort(self) -> memoryview: ...
    def clear(self) -> None: ...

class NearBuckets:
    def __init__(self) -> None: ...
    def add(self, rows: Bytes, most: int) -> int: ...
    def finish(self) -> None: ...
    def sort(self) -> None: ...
    @property
    def pairs(self) -> memoryview: ...
    @property
    def wanted(self) -> memoryview: ...
    num_capped: int
    largest: int

class PairMerger:
    def __init__(self, runs: Sequence[tuple[FileName, int, int]], buffer_bytes: int) -> None: ...
    def read(self, most: int) -> memoryview: ...

class PlaceMerger:
    def __init__(self, runs: Sequence[tuple[FileName, int, int]], buffer_bytes: int) -> None: ...
    def read(self, most: int) -> memoryview: ...

class BucketMerger:
    def __init__(self, runs: Sequence[tuple[FileName, int, int]], buffer_bytes: int) -> None: ...
    def read(self, most: int) -> memoryview: ...

class NearDecider:
    def __init__(
        self,
        sets: Sequence[tuple[int, FileName, int, int, int]],
        threshold: float,
        copies_left_from: int,
        out: FileName,
    ) -> None: ...
    def add(self, pairs: Bytes) -> None: ...
    def finish(self) -> None: ...
    num_removed: int
    num_compared: int
    num_unlike: int

def leave_out(hashes: Bytes, left_out: Bytes) -> memoryview: ...

# corpus

CLEANING_OPTIONS: tuple[str, ...]
"""The attributes of CleanOptions."""
CLEANING_RULES: tuple[tuple[str, str], ...]
"""Name and text of each rule, in the order of `counts`; `samples` name rules by their place."""
RULE_PRESETS: tuple[tuple[str, str], ...]
"""Name and text of each preset of rules of quality."""
RULE_LIMITS: tuple[tuple[int, str, float, str], ...]
"""Preset, name, value and text of each limit."""
DOCUMENT_ROW_BYTES: int
HASH_ROW_BYTES: int

class CleanOptions:
    def __init__(self) -> None: ...
    def __setattr__(self, name: str, value: float) -> None: ...
    def set_rules(self, presets: Sequence[int], limits: Sequence[float]) -> None: ...
    def set_models(
        self,
        language: FastTextModel | None,
        wanted: Sequence[int],
        min_language_score: float,
        score: FastTextModel | None,
        score_label: int,
        keep_above: float,
    ) -> None: ...
    def set_rank(self, collect_keys: bool, cut: int) -> None: ...

class ModelError(ValueError): ...

class FastTextModel:
    def __init__(self, path: FileName) -> None: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def memory_bytes(self) -> int: ...
    def predict(self, text: bytes) -> list[float]: ...

def pick_passages(
    text: Bytes,
    documents: Bytes,
    num_good: int,
    passage_bytes: int,
    limit_other: int,
    limit_good: int,
) -> tuple[memoryview, memoryview]: ...

class WordList:
    def __len__(self) -> int: ...

class WordCounter:
    def __init__(self, partition: int, num_partitions: int, table_bytes: int) -> None: ...
    def add(self, text: Bytes, ends: Uint64s) -> bool: ...
    def list(self, min_count: int) -> WordList: ...

def choose_words(lists: Sequence[WordList], most: int) -> WordList: ...

class ClassifierTrainer:
    def __init__(
        self, words: WordList, bucket: int, min_count: int, epochs: int, first_sum: float
    ) -> None: ...
    def step(
        self,
        text: Bytes,
        ends: Uint64s,
        labels: Bytes,
        weights: tuple[float, float],
        rate: float,
        num_threads: int,
    ) -> float: ...
    def score(self, text: Bytes, ends: Uint64s, num_threads: int) -> memoryview: ...
    def restore(self, rows: npt.NDArray[np.float32], sums: npt.NDArray[np.float32]) -> None: ...
    def write(self, file: int, label_counts: tuple[int, int]) -> None: ...
    @property
    def num_words(self) -> int: ...
    @property
    def rows(self) -> memoryview: ...
    @property
    def sums(self) -> memoryview: ...

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
    def score_keys(self) -> memoryview: ...
    @property
    def counts(self) -> list[tuple[int, int]]: ...
    @property
    def samples(self) -> list[tuple[int, bytes]]: ...
    @property
    def languages(self) -> list[tuple[int, int]]: ...
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
    def __init__(self, capacity: int, skipped_bits: int = 0) -> None: ...
    def add(self, rows: Bytes, pass_index: int, num_passes: int) -> bool: ...
    def take(self) -> memoryview: ...
    def add_blocks(
        self, rows: Bytes, counts: Bytes, first_block: int, pass_index: int, num_passes: int
    ) -> memoryview | None: ...
    def add_in_turn(self, place: int, rows: Bytes) -> memoryview | None: ...
    def stop(self) -> None: ...

def pick_rows(
    rows: Bytes, counts: Bytes, first: int, last: int
) -> tuple[memoryview, memoryview]: ...
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
def clean_text(
    data: Bytes,
    separators: Sequence[bytes],
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
def unpack_snappy(packed_file: int, offset: int, size: int, text_file: int) -> int: ...
def keep_documents(
    text: Bytes, documents: Bytes, removed: Bytes, options: CleanOptions
) -> KeptDocuments: ...
def keep_freed_memory(keep: bool) -> None: ...

# dataset

class CharacterTable:
    def __init__(
        self, codes: npt.NDArray[np.uint32], ids: npt.NDArray[np.uint32], unknown: int
    ) -> None: ...

class CalledCoder:
    def __init__(
        self, encode: Callable[[bytes], npt.NDArray[np.uint32]], vocab_size: int
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
def write_work_file(
    partial: bytes, path: bytes, head: bytes, sections: Sequence[Bytes], alignment: int
) -> None: ...
def flush_files(paths: Sequence[bytes], num_threads: int) -> tuple[int, int] | None: ...
def start_writeback(file: int, offset: int, size: int) -> None: ...

class RangeCounter:
    def __init__(self, bounds: Sequence[int], val_limit: int) -> None: ...
    def add(self, index: Bytes) -> None: ...
    def add_files(self, paths: Sequence[bytes], num_threads: int = 1) -> None: ...
    def row_ends(self) -> memoryview: ...
    def token_ends(self) -> memoryview: ...
    def view_tokens(self, split: int) -> memoryview: ...
    @property
    def tokens(self) -> list[list[int]]: ...
    @property
    def rows(self) -> list[int]: ...
    @property
    def documents(self) -> list[int]: ...

class RangeRows:
    def __init__(self) -> None: ...
    @property
    def damaged(self) -> tuple[bytes, int] | None: ...
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
    def add_held(self, ids: Bytes, index: Bytes, id_bytes: int, low: int, high: int) -> None: ...
    def add_outputs(
        self,
        # (path, bytes in pages, where ids, index, row_ends and token_ends begin)
        outputs: Sequence[tuple[bytes, int, int, int, int, int]],
        page_bytes: int,
        num_buckets: int,
        first: int,
        last: int,
        id_bytes: int,
        low: int,
        high: int,
        val: bool | None,
        val_limit: int,
    ) -> tuple[int, int] | None: ...
    def add_files(
        self,
        paths: Sequence[bytes],
        id_bytes: int,
        low: int,
        high: int,
        val: bool | None,
        val_limit: int,
        num_threads: int = 1,
    ) -> None: ...
    def finish(self, num_threads: int = 1) -> None: ...

class RangeReader:
    def __init__(self, range: RangeRows, id_bytes: int, max_open_files: int) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    def read(self, first: int, last: int, id_bytes: int) -> tuple[memoryview, memoryview]: ...

def sort_rows(index: Bytes, low: int, high: int) -> memoryview: ...
def sort_places(places: Bytes) -> memoryview: ...
def sum_pages(data: Bytes, page_bytes: int) -> memoryview: ...
def find_damaged_page(file: int, page: int, end: int, num_bytes: int, page_bytes: int) -> int: ...
def measure_ids(ids: Bytes, id_bytes: int) -> tuple[int, int]: ...

# tokenizer

def split(pattern: str, text: bytes, at_most: str = "avx512") -> npt.NDArray[np.uint32]: ...
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
    def save(self, path: FileName) -> list[int]: ...
    def add_saved(self, path: FileName, begin: int, ends: Sequence[int], longest: int) -> None: ...
    def find_file_cut(self, path: FileName, at: int, end: int) -> int: ...
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
    def __init__(
        self,
        tie_break: str,
        *,
        longest_token: int = ...,
        num_threads: int = ...,
        many_words: int = ...,
    ) -> None: ...
    def take(self, counter: PieceCounter) -> None: ...
    def take_items(self, items: list[tuple[bytes, int]]) -> None: ...
    def build(self) -> None: ...
    def learn(self, target: int, max_merges: int, min_frequency: int) -> bool: ...
    def merges(self, first: int = 0) -> memoryview: ...
    @property
    def merges_done(self) -> int: ...
    @property
    def num_words(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class WideMergeLearner(MergeLearner): ...

class RoundLearner:
    def __init__(
        self,
        tie_break: str,
        *,
        file_dir: FileName,
        memory_bytes: int,
        longest_token: int = ...,
    ) -> None: ...
    @property
    def rounds(self) -> int: ...
    @property
    def parts(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    def take(self, counter: PieceCounter) -> None: ...
    def take_items(self, items: list[tuple[bytes, int]]) -> None: ...
    def build(self) -> None: ...
    def learn(self, target: int, max_merges: int, min_frequency: int) -> bool: ...
    def merges(self, first: int = 0) -> memoryview: ...
    @property
    def merges_done(self) -> int: ...
    @property
    def num_words(self) -> int: ...

class WideRoundLearner(RoundLearner): ...

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
        # (bytes, id, special, lstrip, rstrip, normalized)
        added: list[tuple[bytes, int, bool, bool, bool, bool]] = ...,
        compose: Callable[[bytes], bytes] | None = None,
        first_half: int | None = None,
        blank_before: int = 0,
    ) -> None: ...
    def last_cut(self, text: bytes, specials: bool) -> int: ...
    def first_cut(self, text: bytes, specials: bool) -> int: ...
    def encode(
        self, text: bytes, specials: bool, is_first: bool = True
    ) -> npt.NDArray[np.uint32]: ...
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
    def merge_pieces(
        self, pieces: list[bytes], at_most: str = "avx512", together: bool = True
    ) -> list[list[int]]: ...
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
def vector_bits() -> int: ...
def has_quick_products() -> bool: ...
def multiply(
    a: int,
    b: int,
    c: int,
    distances: Sequence[int],
    sizes: Sequence[int],
    adds: bool,
    num_threads: int,
    bits: int,
    /,
) -> None: ...
def attention_room_bytes(sizes: Sequence[int], is_backward: bool, /) -> int: ...
def attend(
    tensors: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[int],
    out: int,
    log_sums: int,
    num_threads: int,
    bits: int,
    /,
) -> None: ...
def attend_backward(
    given: int,
    given_strides: Sequence[int],
    tensors: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[int],
    out: int,
    log_sums: int,
    gradients: Sequence[int],
    num_threads: int,
    bits: int,
    /,
) -> None: ...
def adamw_packed(
    states: Sequence[int],
    gradients: int,
    numbers: Sequence[float],
    seed: int,
    position: int,
    size: int,
    num_threads: int,
    /,
) -> None: ...
def momentum_packed(
    codes: int,
    scales: int,
    gradients: int,
    numbers: Sequence[float],
    size: int,
    num_threads: int,
    /,
) -> None: ...
def move_packed(
    weights: int,
    low_bits: int,
    steps: int,
    numbers: Sequence[float],
    cautious: bool,
    seed: int,
    position: int,
    size: int,
    num_threads: int,
    /,
) -> None: ...
def pack_weights(
    values: int, weights: int, low_bits: int, size: int, num_threads: int, /
) -> None: ...
def unpack_weights(
    weights: int, low_bits: int, out: int, size: int, num_threads: int, /
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

class Twister:
    def __init__(self, seed: int) -> None: ...
    def copy(self) -> Twister: ...
    def next(self) -> int: ...
    def skip(self, count: int) -> None: ...
    def fill(self, out: np.ndarray[Any, np.dtype[np.float32]]) -> None: ...
    @property
    def num_used(self) -> int: ...
    @property
    def words(self) -> bytes: ...

class Decoder:
    def __init__(
        self,
        sizes: Sequence[int],
        eps: float,
        cap: float,
        layers: Sequence[Sequence[int]],
        kinds: Sequence[Sequence[int]],
        windows: Sequence[int],
        /,
    ) -> None: ...
    def step(
        self,
        tables: Sequence[int],
        kinds: Sequence[int],
        num_positions: int,
        keys: Sequence[int],
        values: Sequence[int],
        num_rows: int,
        capacity: int,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        logits: int,
        num_logits: int,
        is_prompt: bool,
        num_threads: int,
        before_layer: Callable[[int], None] | None,
        /,
    ) -> None: ...

class testing:  # noqa: N801
    """What only tests and benchmarks call: a submodule."""

    @staticmethod
    def measure_repetition(line: bytes, vectors: bool = True) -> float: ...
    @staticmethod
    def scan_line(text: bytes, vectors: bool = True) -> tuple[int, bool, int]: ...
    @staticmethod
    def find_bytes(text: bytes, wanted: bytes, vectors: bool = True) -> int: ...
    @staticmethod
    def split_words(text: bytes) -> list[tuple[int, int, int]]: ...
    @staticmethod
    def shuffle_key(seed: int, input_index: int, ordinal: int) -> int: ...
    @staticmethod
    def character_classes() -> npt.NDArray[np.uint8]: ...
    @staticmethod
    def safe_cuts(text: bytes, specials: list[bytes]) -> Uint64s: ...
