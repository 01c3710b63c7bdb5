"""Read the shards in an object store as one stream of tokens, like the native stream on a disk.

In:      the shards of a split (storedtokens), starts of windows
Out:     windows, the same as from a disk
Memory:  the stored ids of one batch, and the memory of the cache (stores.extents)

A window is copied from the one or two extents it is in, one at a time, so no thread holds a lock on
one extent while it waits for another. If the cache cannot hold the split and windows are requested
in random order, a whole extent would be fetched for each: then each window is a separate request.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import DataError
from lowtide.loader.ordering import Indices
from lowtide.loader.storeahead import ReadAhead, WindowPlaces
from lowtide.loader.storedtokens import ShardRow, StoredShard, StoredTokens
from lowtide.stores.extentfiles import CachedObject
from lowtide.stores.objects import open_store

__all__ = ["StoreStream"]

_ENDS_STEP = 256
_REQUEST_THREADS = 32
_Request = tuple[Callable[[], None], SimpleQueue[BaseException | None]]


class StoreStream:
    """The tokens of a split in a store; opened separately in each process."""

    def __init__(
        self,
        stored: StoredTokens,
        *,
        dtype: np.dtype[Any],
        id_limit: int,
        windowing: WindowPlaces,
    ) -> None:
        self._row = ShardRow.of(stored.shards)
        self._dtype = dtype
        self._id_limit = id_limit
        self._cache = stored.cache.open()
        self._requests: _Requests | None = None
        self.ahead = ReadAhead(
            self._row, self._cache, url=stored.url, windowing=windowing, item_bytes=dtype.itemsize
        )
        """Its `look_ahead` must be called before windows are requested."""

    # -- reading ----------------------------------------------------------------------------------

    def gather(
        self,
        starts: Indices,
        rows: Indices | None,
        inputs: npt.NDArray[Any],
        targets: npt.NDArray[Any],
    ) -> None:
        """Read the window at each start into rows of existing arrays."""
        length = inputs.shape[1] + 1
        data = np.empty((len(starts), length * self._dtype.itemsize), dtype=np.uint8)
        self._read_windows(starts, length, data)
        ids = data.view(self._dtype)
        self._check_ids(ids, starts)
        where: Any = slice(None) if rows is None else rows
        inputs[where] = ids[:, :-1]
        targets[where] = ids[:, 1:]

    def read(self, first: int, out: npt.NDArray[Any]) -> None:
        """Read the tokens from position `first` on."""
        data = np.empty((1, len(out) * self._dtype.itemsize), dtype=np.uint8)
        starts = np.array([first], dtype=np.uint64)
        self._read_windows(starts, len(out), data)
        ids = data.view(self._dtype)
        self._check_ids(ids, starts)
        out[:] = ids[0]

    def _read_windows(self, starts: Indices, length: int, data: npt.NDArray[np.uint8]) -> None:
        places = [(int(start), row) for start, row in zip(starts, data, strict=True)]
        if self.ahead.is_direct:
            if self._requests is None:
                self._requests = _Requests(_REQUEST_THREADS)
                weakref.finalize(self, self._requests.close)
            self._requests.run(
                [lambda p=place: self._read_tokens(*p, length, direct=True) for place in places]
            )
            return
        places.sort(key=lambda place: place[0])
        item = self._dtype.itemsize
        self._cache.fetch_now(
            dict.fromkeys(
                extent
                for start, _ in places
                for extent in self._row.extents(start, start + length, item)
            )
        )
        for start, row in places:
            self._read_tokens(start, row, length, direct=False)

    def _read_tokens(
        self, start: int, out: npt.NDArray[np.uint8], length: int, *, direct: bool
    ) -> None:
        item, done = self._dtype.itemsize, 0
        view = out.data
        for shard, first, stop in self._row.spans(start, start + length):
            size = (stop - first) * item
            part = view[done : done + size]
            if direct:
                info = shard.tokens.info
                part[:] = memoryview(open_store(info.url).read(info, first * item, size))
            else:
                self._read_bytes(shard.tokens, first * item, part)
            done += size

    def _read_bytes(self, source: CachedObject, start: int, out: memoryview) -> None:
        done = 0
        for extent in source.extents(start, start + len(out)):
            inside = start + done - extent.start
            part = out[done : done + extent.size - inside]
            self._cache.read_into(extent, inside, part)
            done += len(part)

    def _check_ids(self, ids: npt.NDArray[Any], starts: Indices) -> None:
        if not ids.size or int(ids.max()) < self._id_limit:
            return
        row, column = (int(place[0]) for place in np.nonzero(ids >= self._id_limit))
        shard, first, _ = next(self._row.spans(int(starts[row]) + column, self._row.ends[-1]))
        raise DataError(
            f"{shard.tokens.info.url.name} has id {int(ids[row, column])} at token {first}, the "
            f"last one allowed is {self._id_limit - 1}",
            path=str(shard.tokens.info.url),
            next_step="was it made with another tokenizer? copy the dataset to the store again",
        )

    # -- documents --------------------------------------------------------------------------------

    def align_to_documents(self, starts: Indices, reach: int) -> None:
        """Move each start to the first document that begins within `reach` tokens, if one does."""
        for row, start in enumerate(starts.tolist()):
            if start:
                found = next(self._document_starts(start - 1, start - 1 + reach), None)
                starts[row] = start if found is None else found

    def segments(
        self,
        starts: Indices,
        rows: Indices | None,
        segment_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
    ) -> None:
        """Write the document of each token of a window, and the position in it."""
        length = segment_ids.shape[1]
        for number, start in enumerate(starts.tolist()):
            row = number if rows is None else int(rows[number])
            borders = [
                0, *(at - start for at in self._document_starts(start, start + length - 1)), length
            ]  # fmt: skip
            for segment, (begin, end) in enumerate(itertools.pairwise(borders)):
                segment_ids[row, begin:end] = segment
                positions[row, begin:end] = np.arange(end - begin, dtype=np.int32)

    def _document_starts(self, after: int, before: int) -> Iterator[int]:
        """The positions in (after, before] at which a document begins, in order."""
        last = after
        for number in range(bisect_right(self._row.ends, after), len(self._row.shards)):
            shard = self._row.shards[number]
            begin = self._row.ends[number] - shard.num_tokens
            if shard.begins_document and last < begin <= before:
                yield begin
            if begin >= before:
                return
            for end in self._ends_beyond(shard, after - begin):
                # no document begins at the end of the last one
                if begin + end > before or begin + end >= self._row.ends[-1]:
                    return
                yield (last := begin + end)

    def _ends_beyond(self, shard: StoredShard, place: int) -> Iterator[int]:
        """The ends of a shard's documents after a position in it."""
        if shard.documents is None:
            return
        low, high = 0, shard.num_documents
        while high - low > _ENDS_STEP:
            middle = (low + high) // 2
            if int(self._read_ends(shard.documents, middle, 1)[0]) > place:
                high = middle
            else:
                low = middle + 1
        last = 0
        for first in range(low, shard.num_documents, _ENDS_STEP):
            ends = self._read_ends(
                shard.documents, first, min(_ENDS_STEP, shard.num_documents - first)
            )
            for end in ends.tolist():
                if end > shard.num_tokens or end < last:
                    raise DataError(
                        f"a document ends at token {end}, before the one before it or beyond the "
                        "shard",
                        path=str(shard.documents.info.url),
                        next_step="copy the dataset to the store again, all of it",
                    )
                last = end
                if end > place:
                    yield end

    def _read_ends(self, source: CachedObject, first: int, count: int) -> npt.NDArray[np.uint64]:
        data = bytearray(8 * count)
        self._read_bytes(source, 8 * first, memoryview(data))
        return np.frombuffer(data, dtype="<u8")


class _Requests:
    """Threads that wait for a store, so that many requests run concurrently.

    No ThreadPoolExecutor: the interpreter joins its threads at exit, so an interrupted command
    would wait for a store that does not respond, ten attempts of a minute each.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[_Request | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"lowtide-request-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads, each after its current request."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (request := self._jobs.get()) is not None:
            job, done = request
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:
                error = raised
            del request, job  # holds the stream, which would never be freed
            done.put(error)
            error = None  # its traceback holds the stream too
            del done

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all requests, and raise the first error."""
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        for job in jobs:
            self._jobs.put((job, done))
        errors = [done.get() for _ in jobs]
        for error in errors:
            if error is not None:
                raise error
