"""TokenDataset: windows over a stream of tokens as a map-style dataset, read on request.

In:      a prepared dataset, .npy or .bin file, or an array (sources)
Out:     (inputs, targets), targets shifted by one token, as NumPy arrays
Memory:  the requested windows; a row of about 200 bytes per shard; at most 256 open files
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.aliases import takes_second_names
from lowtide.errors import DataError, UsageError
from lowtide.files import checksum_bytes
from lowtide.loader.ordering import Indices, Order, epoch_shifts, order_indices
from lowtide.loader.shuffledblocks import BlockOrder
from lowtide.loader.sources import Split, TokenSource, find_tokens
from lowtide.loader.storeahead import WindowPlaces
from lowtide.loader.storedtokens import DEFAULT_CACHE_SIZE, CacheSettings
from lowtide.loader.storestreams import StoreStream
from lowtide.loader.tokenstreams import Expected, Stream, explain_read_error, open_tokens
from lowtide.quickclasses import dataclass
from lowtide.settings import require_counts
from lowtide.stores.extents import default_cache_dir

__all__ = ["RowPlan", "TokenDataset", "TokenWindows", "Windows", "empty_array"]

Windows = Literal["stream", "documents"]
Tokens = npt.NDArray[Any]

_OUTPUT_LIMITS = {"int64": 1 << 63, "int32": 1 << 31, "uint16": 1 << 16}


class RowPlan(NamedTuple):  # one per batch: created in a third of the time of a dataclass
    """The source of some rows of a batch."""

    dataset: TokenDataset
    starts: Indices
    rows: Indices | None
    """Which rows they are; None is all of them, in order."""


@dataclass(frozen=True)
class TokenWindows:
    """Windows with their documents: attention may be limited to equal `segment_ids`."""

    inputs: Tokens
    targets: Tokens
    segment_ids: npt.NDArray[np.int32]
    """The number of the document within the window, from 0."""
    positions: npt.NDArray[np.int32]
    """The position within the document, from 0 where the document or the window begins."""


class TokenDataset:
    """Windows of `seq_len` tokens over all shards of a split, read as one stream.

    Window i begins at token i * stride (default: seq_len, so windows meet without overlap)
    and may cross shard borders; the last one ends with the last token, so no tail is lost. A path
    may be the URL of a prepared dataset (s3://bucket/prefix), which is read through `cache_dir`, a
    folder of at most `cache_size`. With
    `windows="documents"` each window moves forward to the first document that begins within its
    stride, if one does.

    >>> import numpy, tempfile
    >>> path = tempfile.mkdtemp() + "/ids.npy"
    >>> numpy.save(path, numpy.arange(100, dtype="int32"))
    >>> data = TokenDataset(path, split="train", seq_len=4)
    >>> len(data), data[1]
    (23, (array([4, 5, 6, 7]), array([5, 6, 7, 8])))
    >>> TokenDataset(numpy.arange(100), split="val", seq_len=4)[0]  # ids in memory
    (array([90, 91, 92, 93]), array([91, 92, 93, 94]))
    """

    @takes_second_names
    def __init__(
        self,
        path: str | os.PathLike[str] | npt.ArrayLike,
        *,
        split: Split = "train",
        seq_len: int = 1024,
        stride: int | None = None,
        dtype: npt.DTypeLike | None = None,
        val_fraction: float = 0.1,
        val_tokens: int | None = None,
        eval_only: bool = False,
        vocab_size: int | None = None,
        windows: Windows = "stream",
        output_dtype: Literal["int64", "int32", "uint16"] = "int64",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: str | int = DEFAULT_CACHE_SIZE,
    ) -> None:
        require_counts(seq_len=seq_len, stride=stride, vocab_size=vocab_size)
        if output_dtype not in _OUTPUT_LIMITS:
            raise UsageError(f"output_dtype {output_dtype!r} is not int64, int32 or uint16")
        if windows not in ("stream", "documents"):
            raise UsageError(f"windows {windows!r} is not 'stream' or 'documents'")
        self.source: TokenSource = find_tokens(
            path,
            split=split,
            dtype=dtype,
            val_fraction=val_fraction,
            val_tokens=val_tokens,
            eval_only=eval_only,
            cache=CacheSettings(None if cache_dir is None else Path(cache_dir), cache_size),
        )
        self.seq_len = seq_len
        self.stride = stride or seq_len
        self.windows: Windows = windows
        self.output_dtype = np.dtype(output_dtype)
        self.num_tokens = self.source.num_tokens
        self.vocab_size = self._agreed_vocab_size(vocab_size, self.source.vocab_size)
        self._most_ids: int | None = None
        self._stream: Stream | None = None
        self._stream_pid = 0
        self._check_windows()

    def bound_ids(self, count: int) -> None:
        """Refuse ids from `count` on, which a model has no rows for: at once if the vocabulary is
        known, else when they are read."""
        self._agreed_vocab_size(count, self.vocab_size)
        if self.vocab_size is None and self._most_ids != count:
            self._most_ids, self._stream = count, None

    def _agreed_vocab_size(self, given: int | None, known: int | None) -> int | None:
        if given is not None and known is not None and known > given:
            raise DataError(
                f"the dataset's vocabulary of {known} does not fit into the {given} ids expected",
                path=self.source.place,
                next_step="prepare the text with the model's tokenizer",
            )
        return given if known is None else known

    def _check_windows(self) -> None:
        if self.num_tokens < self.seq_len + 1:
            raise DataError(
                f"the {self.split} split holds {self.num_tokens} tokens, one window of "
                f"{self.seq_len} needs {self.seq_len + 1}",
                path=self.source.place,
                next_step="add text, or use shorter windows (--seq-len, seq_len)",
            )
        if self.windows == "documents":
            self.require_documents()

    def require_documents(self) -> None:
        """Refuse data that does not record where documents end."""
        if not any(shard.num_documents for shard in self.source.shards):
            raise DataError(
                "nothing here says where documents end (no .docs files)",
                path=self.source.place,
                next_step="prepare the text with lowtide prepare, which writes them",
            )

    @property
    def split(self) -> Split:
        """The name of this split."""
        return self.source.split

    @property
    def tokenizer_dir(self) -> str | None:
        """The folder of the tokenizer the ids were made with, None if it is not known."""
        return None if self.source.tokenizer_dir is None else str(self.source.tokenizer_dir)

    @property
    def tokenizer_fingerprint(self) -> str | None:
        """The fingerprint of that tokenizer."""
        return self.source.tokenizer_fingerprint

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens and how they are cut into windows."""
        parts = (
            self.source.fingerprint,
            self.split,
            self.num_tokens,
            self.seq_len,
            self.stride,
            self.windows,
        )
        return checksum_bytes("\n".join(map(str, parts)).encode())

    @property
    def last_start(self) -> int:
        """The last token a window can begin at."""
        return self.num_tokens - self.seq_len - 1

    def __len__(self) -> int:
        return -(-self.last_start // self.stride) + 1

    def __getitem__(self, index: int | slice) -> tuple[Tokens, Tokens]:
        size = len(self)
        if isinstance(index, slice):
            return self.get_batch(range(*index.indices(size)))
        place = _whole_index(index)
        if not -size <= place < size:
            raise IndexError(f"window {place} of {size}")
        inputs, targets = self.get_batch([place % size])
        return inputs[0], targets[0]

    def __iter__(self) -> Iterator[tuple[Tokens, Tokens]]:
        return (self[index] for index in range(len(self)))

    def get_batch(self, indices: Sequence[int] | Tokens) -> tuple[Tokens, Tokens]:
        """Return the windows of `indices` as two C-contiguous arrays [B, T]."""
        return self.gather(self.window_starts(indices))

    def get_windows(self, indices: Sequence[int] | Tokens) -> TokenWindows:
        """Return the windows of `indices` and the documents in them."""
        self.require_documents()
        starts = self.window_starts(indices)
        inputs, targets = self.gather(starts)
        segment_ids = np.empty(inputs.shape, dtype=np.int32)
        positions = np.empty(inputs.shape, dtype=np.int32)
        self.fill_segments(starts, None, segment_ids, positions)
        return TokenWindows(inputs, targets, segment_ids, positions)

    def window_starts(self, indices: Sequence[int] | Tokens) -> Indices:
        """Return the first token of each window."""
        array = np.asarray(indices)
        if array.size == 0:
            array = np.empty(0, dtype=np.uint64)
        elif array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(f"expected a row of indices, not {array.dtype} of shape {array.shape}")
        elif array.dtype.itemsize < 8 or not array.dtype.isnative:
            array = array.astype(np.int64)
        return self._starts_of(array)

    def _starts_of(self, indices: Tokens, shifts: Indices | None = None) -> Indices:
        last = self.last_start
        starts = _native.window_starts(indices, len(self), self.stride, last)
        if shifts is not None:
            np.minimum(starts + shifts, np.uint64(last), out=starts)
        if self.windows == "documents":
            self._call(lambda stream: stream.align_to_documents(starts, self.stride))
            np.minimum(starts, np.uint64(last), out=starts)
        return starts

    def plan_rows(self, order: Order, *, seed: int, first: int, count: int) -> list[RowPlan]:
        """The start of each window of samples `first` to `first + count` of a run.

        `random` draws from all tokens a window can begin at, not only multiples of the stride;
        `shifted` moves all windows of an epoch by the same number of tokens. Data in an object
        store is prefetched from there on.
        """
        if self.source.stored is not None:
            stream = self._open_stream()
            assert isinstance(stream, StoreStream)
            stream.ahead.look_ahead(order, seed=seed, first=first, count=count)
        if order == "random" and self.windows == "stream":
            size = self.last_start + 1
            starts = order_indices(order, seed=seed, size=size, first=first, count=count)
        elif order == "blocks":
            starts = self._starts_of(self.block_order(seed).indices(first, count))
        else:
            indices = order_indices(order, seed=seed, size=len(self), first=first, count=count)
            shifts = None
            if order == "shifted":
                shifts = epoch_shifts(
                    seed=seed, size=len(self), stride=self.stride, first=first, count=count
                )
            starts = self._starts_of(indices, shifts)
        return [RowPlan(self, starts, None)]

    def block_order(self, seed: int) -> BlockOrder:
        """Return the order "blocks" of these windows."""
        return BlockOrder.of(seed=seed, size=len(self), stride=self.stride)

    def epoch_of(self, samples: int) -> int:
        """Return the epoch of a run after `samples` samples."""
        return samples // len(self)

    def gather(self, starts: Indices) -> tuple[Tokens, Tokens]:
        """Read the window at each start."""
        shape = (len(starts), self.seq_len)
        inputs = empty_array(shape, self.output_dtype)
        targets = empty_array(shape, self.output_dtype)
        self.fill_rows(starts, None, inputs, targets)
        return inputs, targets

    def fill_rows(
        self, starts: Indices, rows: Indices | None, inputs: Tokens, targets: Tokens
    ) -> None:
        """Read windows into rows of existing arrays; releases the GIL meanwhile."""
        self._call(lambda stream: stream.gather(starts, rows, inputs, targets))

    def fill_segments(
        self,
        starts: Indices,
        rows: Indices | None,
        segment_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
    ) -> None:
        """Write the documents of windows into rows of existing arrays."""
        self._call(lambda stream: stream.segments(starts, rows, segment_ids, positions))

    def read_tokens(self, first: int, count: int) -> Tokens:
        """Return `count` tokens from position `first` of the split."""
        if first < 0 or count < 0 or first + count > self.num_tokens:
            raise IndexError(f"tokens {first} to {first + count} of {self.num_tokens}")
        tokens = np.empty(count, dtype=self.output_dtype)
        self._call(lambda stream: stream.read(first, tokens))
        return tokens

    def describe(self) -> str:
        """Describe the data, for a training log."""
        source = self.source
        last = source.first_token + self.num_tokens
        lines = [
            *_describe_place(source),
            f"   Total tokens: {source.total_tokens:,}",
            f"   Using {'all of them' if self.split == 'all' else f'{self.split} portion'}: "
            f"{self.num_tokens:,} tokens"
            + (f" in {len(source.shards):,} shards" if len(source.shards) > 1 else "")
            + (f" (indices {source.first_token:,} to {last:,})" if source.path.is_file() else ""),
            f"TokenDataset ({self.split}): {len(self):,} sequences from {self.num_tokens:,} tokens",
        ]
        if source.notice is not None:
            lines.append(f"   Note: {source.notice}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"TokenDataset({self.source.place!r}, split={self.split!r}, "
            f"seq_len={self.seq_len}, stride={self.stride}, windows={len(self)})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}  # a worker process opens its own files

    def _call(self, work: Callable[[Any], None]) -> None:
        try:
            work(self._open_stream())
        except _native.ReadError as error:
            expected = Expected(self._id_limit(), self._vocabulary, self.output_dtype)
            raise explain_read_error(self.source, expected, *error.args) from None

    def _open_stream(self) -> Stream:
        # After a fork the stream may be locked by a thread of the parent.
        if self._stream is None or self._stream_pid != os.getpid():
            self._stream = self._make_stream()
            self._stream_pid = os.getpid()
        return self._stream

    def _make_stream(self) -> Stream:
        reach = self.stride if self.windows == "documents" else 0
        places = WindowPlaces(self.seq_len, self.stride, reach, len(self))
        return open_tokens(self.source, id_limit=self._id_limit(), places=places)

    def require_cache(self, order: Order) -> str | None:
        """Refuse a cache too small for an object store read in this order; return a cost warning.

        None if the cost is low, and for data on a disk.
        """
        stream = self._open_stream() if self.source.stored is not None else None
        return stream.ahead.require_cache(order) if isinstance(stream, StoreStream) else None

    @property
    def _vocabulary(self) -> int | None:
        return self._most_ids if self.vocab_size is None else self.vocab_size

    def _id_limit(self) -> int:
        stored = self.source.dtype
        limits = [1 << (8 * stored.itemsize - (stored.kind == "i")), (1 << 64) - 1]
        limits.append(_OUTPUT_LIMITS[self.output_dtype.name])
        if self._vocabulary is not None:
            limits.append(self._vocabulary)
        return min(limits)


def empty_array(shape: tuple[int, int], dtype: np.dtype[Any]) -> Tokens:
    """Make an array in memory of an earlier batch: new pages cost more than filling them."""
    rows = _native.empty_rows(*shape, dtype.itemsize, dtype.kind == "i")
    return rows.view(dtype)  # of several 64-bit types, the one that NumPy calls int64


def _whole_index(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise UsageError(
            f"an index of type {type(index).__name__}, expected a whole number or a slice",
            next_step="get_batch([0, 7, 9]) takes the windows of a row of indices",
        ) from None


def _describe_place(source: TokenSource) -> tuple[str, str]:
    if source.stored is None:
        where = "in memory" if source.array is not None else f"on disk: {source.path}"
        return (
            f"Using tokens {where}",
            "   (read window by window: memory does not grow with the dataset)",
        )
    cache = source.stored.cache
    return (
        f"Using tokens in an object store: {source.place}",
        f"   (read through a cache of {cache.size} in {cache.folder or default_cache_dir()})",
    )
