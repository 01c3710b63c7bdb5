"""Batches directly from text: tokenized on the fly, shuffled in a buffer, exactly resumable.

In:      text files, or a Hugging Face dataset; a tokenizer
Out:     {"input_ids", "targets"} [B, T], one epoch per `for`
Memory:  two blocks of `shuffle_buffer_size` windows (see planned_bytes) and one of text
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lowtide.aliases import takes_second_names
from lowtide.corpus.inputs import names_files
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.errors import DataError, UsageError
from lowtide.files import atomic_file, checksum_bytes
from lowtide.loader.batches import Share, check_rank, check_version, rank_share, read_count
from lowtide.loader.endlessbatches import EndlessBatches
from lowtide.loader.footprint import planned_bytes
from lowtide.loader.heldout import KeptTexts
from lowtide.loader.readahead import Block, BlockReader, StoredBlock
from lowtide.loader.textencoders import make_encoder
from lowtide.loader.texts import (
    FileTexts,
    HubTexts,
    PathLike,
    TextSource,
    epoch_seed,
    iter_encoded,
    path_list,
)
from lowtide.loader.tokenblocks import BlockStart, Windowing, iter_token_blocks, windows_before
from lowtide.loader.windows import TokenDataset, Tokens
from lowtide.scratch import ScratchFolder, naming_full_disk
from lowtide.settings import require, require_counts

__all__ = ["StreamingDataLoader"]

STATE_VERSION = 1
_SAMPLE_BYTES = 1 << 20
_ALMOST_OVER = 0.999
Batch = dict[str, Tokens]


class StreamingDataLoader:
    """Batches of windows over texts that are tokenized while they are read.

    Documents follow each other with the end-of-text token between them (where the tokenizer has
    one), and windows of `seq_len` begin every `stride` tokens. `shuffle_buffer_size` windows are
    shuffled together, in another order each epoch, and files are read in another order too. Each
    `for` is one epoch; `state_dict()` lets another process resume after any batch. With several
    ranks each reads all the text and gives its own rows of the same global batches.

    `streaming=False` tokenizes everything once into a temporary file on disk and shuffles all
    windows together: slower to start, a full shuffle, and still nothing in memory.
    `val_fraction` leaves out that share of all documents, chosen by their content, for validation
    (`lowtide.loader.heldout`). `max_examples` uses only the first so many other documents. A
    `dataset_id` that is a local file or a pattern of files is read as files. `reader_bytes` and
    `budget_bytes` are as in FileTexts.
    """

    @takes_second_names
    def __init__(
        self,
        dataset_id: PathLike | None = None,
        *,
        tokenizer: Any,
        files: PathLike | Sequence[PathLike] | None = None,
        seq_len: int = 128,
        batch_size: int = 32,
        streaming: bool = True,
        shuffle_buffer_size: int = 10_000,
        stride: int | None = None,
        max_examples: int | None = None,
        val_fraction: float = 0.0,
        text_field: str = "text",
        split: str = "train",
        config_name: str | None = None,
        end_of_text: str = "<|endoftext|>",
        seed: int = 42,
        drop_last: bool = False,
        output_dtype: Literal["int32", "int64"] = "int32",
        rank: int = 0,
        world_size: int = 1,
        reader_bytes: int = ReadingSettings.reader_bytes,
        budget_bytes: int | None = None,
    ) -> None:
        check_rank(rank, world_size)
        require_counts(
            seq_len=seq_len, batch_size=batch_size, stride=stride, max_examples=max_examples
        )
        require_counts(least=0, shuffle_buffer_size=shuffle_buffer_size)
        require_counts(least=None, seed=seed)
        share: Any = val_fraction
        is_share = isinstance(share, float | int) and 0 <= share < 1
        require(is_share, "val_fraction", val_fraction, "a share in [0, 1)")
        require(output_dtype in ("int32", "int64"), "output_dtype", output_dtype, "int32 or int64")
        if (dataset_id is None) == (files is None):
            raise UsageError("give either dataset_id or files")
        given: Any = dataset_id
        if not (given is None or isinstance(given, str | os.PathLike)):
            raise UsageError(
                f"dataset_id is {type(given).__name__}, expected a name or a path",
                next_step="give files=[…] for several files",
            )
        dataset_id = given if given is None else os.fspath(given)
        if dataset_id is not None and names_files(dataset_id) and not Path(dataset_id).is_dir():
            dataset_id, files = None, dataset_id  # a folder may be a Hugging Face dataset
        self._source: TextSource
        if dataset_id is not None:
            self._source = HubTexts(
                dataset_id,
                split=split,
                text_field=text_field,
                config_name=config_name,
                streaming=streaming,
            )
        else:
            if split != "train" or config_name is not None:
                raise UsageError(
                    f"split {split!r} and config_name {config_name!r}: files have neither",
                    next_step="leave both out, and name the files that are wanted",
                )
            self._source = FileTexts(
                path_list(files),
                text_field=text_field,
                reader_bytes=reader_bytes,
                budget_bytes=budget_bytes,
            )
        if val_fraction:
            self._source = KeptTexts(self._source, val_fraction)
        self._encoder = make_encoder(tokenizer, end_of_text=end_of_text)
        self._windowing = Windowing(seq_len, stride or seq_len, shuffle_buffer_size)
        self.seq_len, self.batch_size = seq_len, batch_size
        self.streaming = streaming
        self.seed = seed
        self.rank, self.world_size = rank, world_size
        self._max_examples = max_examples
        self._drop_last = drop_last
        self._dtype = np.dtype(output_dtype)
        self._epoch = 0
        self._start = BlockStart()  # of the block of the next window
        self._delivered = 0  # windows of that block
        self._resumed = False
        self._stored: TokenDataset | None = None
        self._most_ids: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next or current `for` loop."""
        return self._epoch

    @property
    def memory_bytes(self) -> int:
        """Its memory: `planned_bytes`, and the memory of reading its files."""
        if not self.streaming:
            return 0
        windowing = self._windowing
        held = planned_bytes(
            seq_len=windowing.seq_len,
            shuffle_buffer_size=windowing.buffer_windows,
            stride=windowing.stride,
        )
        source = self._source
        source = source.source if isinstance(source, KeptTexts) else source
        return held + (source.reading_bytes if isinstance(source, FileTexts) else 0)

    @property
    def end_of_text_id(self) -> int | None:
        """The id between documents; None if the tokenizer has no such token."""
        return self._encoder.end_of_text_id

    def bound_ids(self, count: int) -> None:
        """Refuse ids from `count` on: at once if the tokenizer has a known size, else when batches
        are made."""
        self._encoder.require_ids_below(count)
        self._most_ids = count

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts, the tokenizer, and how windows are cut and ordered."""
        return self._fingerprint_with(self._source.fingerprint)

    def _fingerprint_with(self, texts: str) -> str:
        parts: list[Any] = [texts, self._encoder.fingerprint, self._windowing]
        parts += [self.streaming, self._max_examples, self.seed]
        return checksum_bytes("\n".join(map(str, parts)).encode())

    @cached_property
    def estimated_windows(self) -> int | None:
        """Windows of an epoch, by `estimate_windows`; None if unknown."""
        return self.estimate_windows()

    def estimate_windows(self, *, sample_bytes: int = _SAMPLE_BYTES) -> int | None:
        """Estimate the windows of an epoch by the size of the texts and a sample of them.

        Depends only on texts and tokenizer, so that a resumed run gets the same result; None if the
        size of the texts is unknown.
        """
        if not self.streaming:
            return len(self._store_tokens())
        total = self._source.text_bytes
        if total is None and self._max_examples is None:
            return None
        num_bytes = num_tokens = num_documents = 0
        for text, ids in iter_encoded(
            self._source, self._encoder, seed=None, max_documents=self._max_examples
        ):
            num_bytes += len(text.data)
            num_tokens += len(ids)
            num_documents += text.ends_document
            if num_bytes >= sample_bytes:
                break
        else:  # that was all
            return max(1, self._windowing.count_windows(num_tokens))
        wanted = [] if total is None else [total * num_tokens / max(1, num_bytes)]
        if self._max_examples is not None:
            wanted.append(self._max_examples * num_tokens / max(1, num_documents))
        return max(1, self._windowing.count_windows(int(min(wanted))))

    def epochs_done(self, state: Mapping[str, Any]) -> float:
        """How often the texts were read at a state: whole epochs, and a share of the current one.

        The share is an estimate, below 1 until the epoch has ended.
        """
        epoch = int(state["epoch"])
        if self.estimated_windows is None:
            return float(epoch)
        seed, number = epoch_seed(self.seed, epoch), int(state["block"]["number"])
        done = windows_before(number, self._windowing, seed=seed) + int(state["delivered"])
        return epoch + min(done / self.estimated_windows, _ALMOST_OVER)

    def __iter__(self) -> Iterator[Batch]:
        if not self._resumed and (self._delivered or self._start.number):
            self._finish_epoch()  # the last `for` loop was left early
        self._resumed = False
        epoch = self._epoch  # of this loop: another one may be open, and have its own
        blocks = BlockReader(self._iter_blocks())
        try:
            share = self._next_share(0, blocks)
            if share is None:
                raise self._too_little(blocks.seen_windows)
            while share is not None:
                batch = self._make_batch(share, blocks)
                following = self._next_share(share.end, blocks)
                self._epoch = epoch
                if following is None:  # known now, so a state after this batch contains it
                    self._finish_epoch()
                else:
                    blocks.drop(until=share.end)
                    self._start, self._delivered = blocks.position(share.end)
                yield batch
                share = following
        finally:
            blocks.close()

    def _too_little(self, num_windows: int) -> DataError:
        if num_windows < 0 or self._start.number:
            return DataError("a loader's state lies behind the end of its texts")
        if num_windows:
            return DataError(
                f"the texts give {num_windows} windows, fewer than one batch",
                next_step="use a smaller batch_size, or drop_last=False",
            )
        return DataError(
            f"the texts hold fewer than the {self.seq_len + 1} tokens that one window of "
            f"{self.seq_len} needs",
            next_step="add text, or use a smaller seq_len",
        )

    def _finish_epoch(self) -> None:
        self._epoch += 1
        self._start, self._delivered = BlockStart(), 0

    def _next_share(self, first: int, blocks: BlockReader) -> Share | None:
        """Return the next batch's windows, counted from the beginning of this `for` loop."""
        wanted = self.batch_size * self.world_size
        available = blocks.available(until=first + wanted)
        if self._drop_last and available < first + wanted:
            return None
        return rank_share(
            first,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            end=min(available, first + wanted),
        )

    def _make_batch(self, share: Share, blocks: BlockReader) -> Batch:
        shape = (share.rank_count, self.seq_len)
        inputs, targets = np.empty(shape, self._dtype), np.empty(shape, self._dtype)
        blocks.fill(share.rank_first, inputs, targets)
        if self._most_ids is not None:
            self._encoder.require_ids_below(self._most_ids, inputs, targets)
        return {"input_ids": inputs, "targets": targets}

    def _iter_blocks(self) -> Iterator[tuple[Block, int]]:
        """The epoch's blocks from the current one on, each with its number of delivered windows."""
        if not self.streaming:
            yield (
                StoredBlock(
                    self._store_tokens(),
                    self._epoch,
                    self.seed,
                    shuffle=self._windowing.buffer_windows > 1,
                ),
                self._delivered,
            )
            return
        skip = self._delivered
        for block in iter_token_blocks(
            self._source,
            self._encoder,
            self._windowing,
            seed=epoch_seed(self.seed, self._epoch),
            order_files=self._max_examples is None and self._windowing.buffer_windows > 1,
            start=self._start,
            max_documents=self._max_examples,
        ):
            yield block, skip
            skip = 0

    def _store_tokens(self) -> TokenDataset:
        """Tokenize everything into a temporary file, once; it is removed with the loader."""
        if self._stored is not None:
            return self._stored
        folder = ScratchFolder("tokens")
        weakref.finalize(self, folder.remove)
        path = folder.path / "tokens.bin"
        texts = iter_encoded(
            self._source, self._encoder, seed=None, max_documents=self._max_examples
        )
        with naming_full_disk(folder.path), atomic_file(path) as file:
            for _, ids in texts:
                file.write(np.ascontiguousarray(ids, dtype="<u4").data)
        self._stored = TokenDataset(
            path,
            split="all",
            seq_len=self.seq_len,
            stride=self._windowing.stride,
            dtype="uint32",
            output_dtype="int64" if self._dtype.itemsize == 8 else "int32",
        )
        return self._stored

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stored": None}  # removed with this loader; a copy makes its own

    def endless(self) -> EndlessBatches:
        """Return (inputs, targets) epoch after epoch, like a BatchLoader."""
        return EndlessBatches(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume after the last delivered batch: a position, a few counts."""
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "block": self._start.as_json(),
            "delivered": self._delivered,
            "fingerprint": self.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the next `for` where `state` was taken; batch size and ranks may differ."""
        check_version(state, STATE_VERSION, ("epoch", "block", "delivered", "fingerprint"))
        named = getattr(self._source, "named_fingerprint", "")  # in states of earlier versions
        if state["fingerprint"] not in (self.fingerprint, self._fingerprint_with(named)):
            raise DataError(
                "the texts, the tokenizer or the settings of the loader changed since its state "
                "was saved: its place in the texts means nothing any more",
                next_step="bring back what that run had, or start a new run from its weights",
            )
        epoch, delivered = read_count(state, "epoch"), read_count(state, "delivered")
        self._start = BlockStart.from_json(state["block"])
        self._epoch, self._delivered = epoch, delivered
        self.go_on()

    def go_on(self) -> None:
        """Let the next `for` go on after the last delivered batch, in the same epoch."""
        self._resumed = True
