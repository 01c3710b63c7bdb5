"""Encode a part right after hashing it, if this worker has the hashes of all earlier parts.

In:      clean blocks of a part, in memory; results of parts that other workers hashed
Out:     results of the encode stage, byte-identical, without reading and cleaning a part twice
Memory:  `table_bytes` of hashes; `text_bytes` of clean text for each thread

Whether a line is a duplicate depends on all earlier parts, so parts are processed in the order of
the corpus. In its turn a part only gets the positions of its blocks; then its blocks go through the
hash table closely behind the previous ones (decision 49), and are encoded. A single worker does all
parts this way, and the stages that find duplicates have nothing to do. This mode ends for good when
the table is full, a part does not fit in memory, or another worker has the next part: from then on
the stages run one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from lowtide import _native
from lowtide.corpus.blocktable import Identity
from lowtide.corpus.cleaning import HASH_ROW_BYTES
from lowtide.corpus.deduplication import TABLE_ROW_BYTES
from lowtide.corpus.reading import TextBlock
from lowtide.dataset.encoding import NO_LINES
from lowtide.dataset.staged.encoding import EncodeStage
from lowtide.dataset.staged.job import HASH_STAGE, StagedJob
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.quickclasses import dataclass

__all__ = ["EncodingAhead", "HeldPart"]

_MOST_READ = 8
"""Limit on parts hashed by others whose hashes are read here, beyond as many as were hashed here:
reading those of a long job would take longer than cleaning twice."""
_STEP_BYTES = HASH_ROW_BYTES << 16


@dataclass
class HeldPart:
    """The clean blocks of a part, as long as all of them fit in memory."""

    room_bytes: int
    blocks: list[tuple[TextBlock, _native.CleanedBlock]] = field(default_factory=list)

    def add(self, block: TextBlock, cleaned: _native.CleanedBlock) -> None:
        """Keep a block; if it does not fit, drop all blocks."""
        if self.room_bytes < 0:
            return
        size = max(len(block.data), cleaned.text.nbytes)
        # Hashes count twice: a copy is also kept until the end of the part.
        self.room_bytes -= size + 2 * cleaned.hashes.nbytes + cleaned.documents.nbytes
        self.blocks.append((replace(block, data=b"", row_ends=None), cleaned))
        if self.room_bytes < 0:
            self.blocks.clear()


class _Lines(list[memoryview]):
    """The lines to remove from a part's blocks."""

    def load(self, block: int) -> memoryview:
        return self[block]


class _Turn(NamedTuple):
    """The state that a part needs of the earlier ones."""

    finder: _native.DuplicateFinder
    first_place: int
    """Index of its first block, among those added to the table."""
    first_block: int
    document: Identity | None


class EncodingAhead:
    """The hashes of the first parts of a corpus, and the next part to add."""

    def __init__(
        self,
        job: StagedJob,
        encoding: EncodeStage,
        *,
        table_bytes: int,
        text_bytes: int,
        most_read: int = _MOST_READ,
    ) -> None:
        self._most_read = most_read
        self._job = job
        self._encoding = encoding
        self._text_bytes = text_bytes
        self._finder = _native.DuplicateFinder(table_bytes // TABLE_ROW_BYTES)
        self._is_open = True
        self._begun: set[int] = set()
        self._next_part = 0
        self._first_block = 0
        self._document: Identity | None = None
        self._num_hashed, self._num_read = 0, 0
        self._next_place = 0
        self._num_adding = 0
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Condition] = {}  # of waiting parts, by part

    @contextlib.contextmanager
    def hold(self, part: int) -> Generator[HeldPart | None]:
        """Keep a part in memory while it is hashed; None once this mode has ended."""
        with self._lock:
            is_held = self._is_open
            if is_held:
                self._begun.add(part)
        try:
            yield HeldPart(self._text_bytes) if is_held else None
        finally:
            with self._lock:
                self._begun.discard(part)
                self._wake_first()

    def encode(self, part: int, held: HeldPart, facts: Mapping[str, Any]) -> Uncommitted | None:
        """Encode a part, if all parts before it are known; `facts` are those of its record.

        Returns its encoded result, which is not committed yet.
        """
        if held.room_bytes < 0:
            self.close()
            return None
        turn = self._take_turn(part, len(held.blocks), facts)
        if turn is None:
            return None
        lines = self._find_duplicates(turn, held)
        if lines is None:
            self.close()
            return None
        return self._encoding.encode_held(
            part, held.blocks, lines, first_block=turn.first_block, document=turn.document
        )

    def close(self) -> None:
        """Wake all waiting parts, and free the table's memory."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._is_open = False
        self._finder = _native.DuplicateFinder(0)
        for gate in self._gates.values():
            gate.notify()

    def _wake_first(self) -> None:
        """Wake the first waiting part: no later one can continue before it."""
        if self._gates:
            self._gates[min(self._gates)].notify()

    def _take_turn(self, part: int, num_blocks: int, facts: Mapping[str, Any]) -> _Turn | None:
        with self._lock:
            while self._is_open and self._next_part < part:
                if self._next_part in self._begun or self._num_adding:
                    self._wait(part)
                elif not self._read_next():
                    self._close()
            if not self._is_open or self._next_part != part:
                return None
            turn = _Turn(self._finder, self._next_place, self._first_block, self._document)
            self._next_place += num_blocks
            self._num_adding += 1
            self._num_hashed += 1
            self._pass(facts)
            return turn

    def _wait(self, part: int) -> None:
        gate = self._gates[part] = threading.Condition(self._lock)
        try:
            gate.wait()
        finally:
            del self._gates[part]

    def _find_duplicates(self, turn: _Turn, held: HeldPart) -> _Lines | None:
        """The lines of a part's blocks that occurred before; None if that cannot be known."""
        try:
            # Add all blocks, even after one that did not fit: later parts wait for each of them.
            found = [
                turn.finder.add_in_turn(turn.first_place + number, cleaned.hashes)
                if self._job.settings.dedup
                else NO_LINES
                for number, (_, cleaned) in enumerate(held.blocks)
            ]
        except RuntimeError:  # an earlier part failed
            return None
        except BaseException:
            turn.finder.stop()  # these blocks will not be added
            raise
        finally:
            with self._lock:
                self._num_adding -= 1
                self._wake_first()
        lines = [row for row in found if row is not None]
        return _Lines(lines) if len(lines) == len(found) else None

    def _add(self, hashes: memoryview) -> bool:
        """Add hashes; False if the table is full."""
        return not self._job.settings.dedup or self._finder.add(hashes, 0, 1)

    def _read_next(self) -> bool:
        """Read the next part's hashes from its result; False if there is none, or no room."""
        task, records = Task(HASH_STAGE, self._next_part), self._job.records
        if self._num_read >= self._num_hashed + self._most_read or not records.is_done(task):
            return False
        output = records.open(task)
        for begin in range(0, output.size("hashes"), _STEP_BYTES):
            end = min(begin + _STEP_BYTES, output.size("hashes"))
            if not self._add(output.read("hashes", begin=begin, end=end)):
                return False
        self._finder.take()
        self._num_read += 1
        self._pass(records.read(task)["facts"])
        return True

    def _pass(self, facts: Mapping[str, Any]) -> None:
        """Advance to the next part."""
        self._next_part += 1
        self._first_block += facts["blocks"]
        if facts["open_document"]:
            input_index, ordinal, content_hash = facts["open_document"]
            self._document = (input_index, ordinal, content_hash)
        self._wake_first()
