"""Write chosen examples to files in the order in which they are learned.

In:      Examples (examples)
Out:     work files of 256 examples each: texts, where they end, labels
Memory:  one file's examples
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.arrays import np
from lowtide.classifier.examples import Examples
from lowtide.corpus.workfiles import open_work_file, write_work_file
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHUNK_EXAMPLES", "Chunk", "gather_examples", "iter_chunks"]

CHUNK_EXAMPLES = 256


@dataclass(frozen=True)
class Chunk:
    """A number of examples: their concatenated texts and labels."""

    text: NDArray[np.uint8]
    ends: NDArray[np.uint64]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, begin: int, end: int) -> Chunk:
        """Examples `begin` to `end`."""
        start = int(self.ends[begin - 1]) if begin else 0
        ends = self.ends[begin:end]
        text = self.text[start : int(ends[-1])]
        return Chunk(text, ends - np.uint64(start), self.labels[begin:end])

    def text_of(self, place: int) -> bytes:
        """One example's text."""
        start = int(self.ends[place - 1]) if place else 0
        return self.text[start : int(self.ends[place])].tobytes()


def gather_examples(
    examples: Examples,
    folder: Path,
    *,
    held_out: bool,
    on_done: Callable[[int], None],
) -> list[Path]:
    """Write training or test examples in their order; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    places = np.flatnonzero(examples.held_out == held_out)
    places = places[np.argsort(examples.order[places], kind="stable")]
    kind = "test" if held_out else "train"
    paths: list[Path] = []
    for number, begin in enumerate(range(0, len(places), CHUNK_EXAMPLES)):
        path = folder / f"{kind}-{number:06d}.gathered"
        paths.append(path)
        chunk = places[begin : begin + CHUNK_EXAMPLES]
        if not path.exists():
            _write_chunk(examples, chunk, path)
        on_done(len(chunk))
    return paths


def _write_chunk(examples: Examples, places: NDArray[np.int64], path: Path) -> None:
    text = bytearray()
    for place in places:
        text += _read_text(examples, int(place))
    ends = np.cumsum(examples.sizes[places]).astype(np.uint64)
    sections = {
        "text": memoryview(text),
        "ends": memoryview(ends.tobytes()),
        "labels": memoryview(examples.labels[places].tobytes()),
    }
    write_work_file(path, {}, sections)


def _read_text(examples: Examples, place: int) -> bytes:
    path, size = examples.paths[examples.files[place]], int(examples.sizes[place])
    with path.open("rb", buffering=0) as file:
        data = os.pread(file.fileno(), size, int(examples.offsets[place]))
    if len(data) != size:
        raise DataError(
            "a work file ends too early", path=path, next_step="start over with --restart"
        )
    return data


def iter_chunks(paths: list[Path]) -> Iterator[Chunk]:
    """Read gathered examples, file by file."""
    for path in paths:
        work = open_work_file(path)
        yield Chunk(
            np.frombuffer(work.read("text"), np.uint8),
            np.frombuffer(work.read("ends"), np.uint64),
            np.frombuffer(work.read("labels"), np.uint8),
        )
