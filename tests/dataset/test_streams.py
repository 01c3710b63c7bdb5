"""Ids of several files as one stream: every range, step and end of a document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.dataset.tokenfiles import streams
from lowtide.dataset.tokenfiles.streams import (
    TokenFile,
    TokenStream,
    WrittenFiles,
    iter_lengths,
    new_file,
    write_ids,
)
from lowtide.errors import DataError

U2 = np.dtype("<u2")


def write_part(
    folder: Path, name: str, ids: list[int], ends: list[int] | None = None, **more: Any
) -> TokenFile:
    path = folder / f"{name}.bin"
    path.write_bytes(b"head" + np.array(ids, U2).tobytes())
    options: dict[str, Any] = {}
    if ends is not None:
        docs = folder / f"{name}.docs"
        docs.write_bytes(b"xx" + np.array(ends, "<u8").tobytes())
        options = {"num_documents": len(ends), "ends_path": docs, "ends_offset": 2}
    return TokenFile(path, 4, len(ids), U2, **{**options, **more})


def collect(stream: TokenStream, first: int, last: int) -> tuple[list[list[int]], list[int]]:
    """Chunks of ids, and the ends of documents counted from `first`."""
    chunks: list[list[int]] = []
    found: list[int] = []
    done = 0
    for ids, ends in stream.iter_chunks(first, last):
        chunks.append(ids.tolist())
        found += [done + int(end) for end in ends]
        done += len(ids)
    return chunks, found


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_every_stretch_of_several_files(tmp_path: Path, step: int, rows: int) -> None:
    ids = list(range(100, 112))
    parts = [
        write_part(tmp_path, "a", ids[:5], [2, 2, 5], index_rows=rows),
        write_part(tmp_path, "b", ids[5:6], [], index_rows=rows),
        write_part(tmp_path, "c", ids[6:], [1, 4], index_rows=rows),
    ]
    stream = TokenStream(parts, step_tokens=step)
    assert stream.num_tokens == 12
    ends = [2, 5, 7, 10]
    for first in range(13):
        for last in range(first, 13):
            chunks, found = collect(stream, first, last)
            assert [one for chunk in chunks for one in chunk] == ids[first:last]
            assert all(0 < len(chunk) <= step for chunk in chunks)
            assert found == [end - first for end in ends if first < end <= last]


def test_ends_are_the_ids_that_mark_them_where_no_file_says_them(tmp_path: Path) -> None:
    part = write_part(tmp_path, "a", [0, 7, 0, 0, 7])
    assert collect(TokenStream([part], end_id=7), 0, 5)[1] == [2, 5]
    assert collect(TokenStream([part], end_id=7), 2, 5)[1] == [3]
    assert collect(TokenStream([part]), 0, 5)[1] == []
    named = write_part(tmp_path, "b", [0, 7, 0], [1, 3])
    assert collect(TokenStream([named], end_id=7), 0, 3)[1] == [1, 3]  # the file has ends


def test_ends_by_lengths_and_pointers(tmp_path: Path) -> None:
    index = tmp_path / "a.idx"
    lengths, pointers = np.array([2, 0, 3], "<i4"), np.array([0, 4, 4], "<i8")
    index.write_bytes(b"head" + lengths.tobytes() + pointers.tobytes())
    part = replace(
        write_part(tmp_path, "a", [1, 2, 3, 4, 5]),
        num_documents=3, ends_path=index, ends_offset=4, ends_are_lengths=True,
    )  # fmt: skip
    for rows in (1, 2, 9):
        stream = TokenStream([replace(part, index_rows=rows)])
        assert collect(stream, 0, 5)[1] == [2, 5]
        assert collect(stream, 2, 5)[1] == [3]
        assert [one.tolist() for one in iter_lengths(stream)] in ([[2, 3]], [[2], [3]])
    for damaged, column in ((-1, "lengths"), (3, "lengths"), (6, "pointers")):
        broken = lengths.copy(), pointers.copy()
        broken[column == "pointers"][1] = damaged
        index.write_bytes(b"head" + broken[0].tobytes() + broken[1].tobytes())
        with pytest.raises(DataError, match=r"documents from [01] on do not follow one another"):
            collect(TokenStream([part]), 0, 5)


@pytest.mark.parametrize("ends", [[3, 2], [2, 6], [6]])
def test_ends_that_fall_or_leave_the_file_are_refused(tmp_path: Path, ends: list[int]) -> None:
    part = write_part(tmp_path, "a", [1, 2, 3, 4, 5], ends)
    with pytest.raises(DataError, match="document ends must rise and stay in the file") as caught:
        collect(TokenStream([part]), 0, 5)
    assert caught.value.path == part.ends_path


def test_files_that_end_too_early_are_told(tmp_path: Path) -> None:
    part = write_part(tmp_path, "a", [1, 2, 3], [3])
    with pytest.raises(DataError, match="the file ends too early"):
        collect(TokenStream([replace(part, num_tokens=4)]), 0, 4)
    with pytest.raises(DataError, match="the index ends too early"):
        collect(TokenStream([replace(part, num_documents=2)]), 0, 3)


def test_the_first_document_behind_a_place_is_found_by_halving(tmp_path: Path) -> None:
    ends = [1, 4, 4, 9, 10]
    part = write_part(tmp_path, "a", list(range(10)), ends)
    assert part.ends_path is not None
    with part.ends_path.open("rb") as file:
        for start in range(11):
            expected = next((row for row, end in enumerate(ends) if end > start), len(ends))
            assert streams._find_row(file, part, start) == expected


def test_lengths_go_on_from_file_to_file(tmp_path: Path) -> None:
    parts = [
        write_part(tmp_path, "a", [0] * 5, [2]),
        write_part(tmp_path, "b", [0] * 3, []),
        write_part(tmp_path, "c", [0] * 6, [1, 4]),
        write_part(tmp_path, "d", [0] * 2),
    ]
    for count, expected in ((1, [2, 3]), (2, [2, 6]), (3, [2, 7, 3, 2]), (4, [2, 7, 3, 4])):
        found = [int(one) for some in iter_lengths(TokenStream(parts[:count])) for one in some]
        assert found == expected
    whole = [write_part(tmp_path, "e", [0] * 3, [3])]
    assert [one.tolist() for one in iter_lengths(TokenStream(whole))] == [[3]]
    assert list(iter_lengths(TokenStream([]))) == []


def test_files_are_compared_with_their_checksums_once_and_only_if_read(tmp_path: Path) -> None:
    def known(part: TokenFile) -> TokenFile:
        assert part.ends_path is not None
        sums = [
            xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in (part.path, part.ends_path)
        ]
        return replace(part, checksum=sums[0], ends_checksum=sums[1])

    parts = [known(write_part(tmp_path, name, [1, 2], [2])) for name in ("a", "b")]
    stream = TokenStream(parts)
    list(stream.iter_chunks(0, 2))
    assert stream._intact == {parts[0].path}
    parts[0].path.write_bytes(b"head" + bytes(4))
    list(stream.iter_chunks(0, 2))  # already verified
    for use in (lambda: list(TokenStream(parts).iter_chunks(1, 3)),
                lambda: list(iter_lengths(TokenStream(parts)))):  # fmt: skip
        with pytest.raises(DataError):
            use()
    list(TokenStream(parts).iter_chunks(2, 4))  # nothing of the damaged file
    assert parts[1].ends_path is not None
    parts[1].ends_path.write_bytes(b"xx" + np.array([1], "<u8").tobytes())
    with pytest.raises(DataError):
        list(TokenStream(parts).iter_chunks(2, 4))
    list(TokenStream([replace(parts[1], ends_checksum=None)]).iter_chunks(0, 2))


def test_a_file_that_is_whole_is_not_written_again(tmp_path: Path) -> None:
    told: list[int] = []
    written = WrittenFiles({}, lambda: told.append(1))
    stream = TokenStream([write_part(tmp_path, "a", [1, 2, 3, 4])], step_tokens=3)
    for _ in range(2):
        with new_file(tmp_path / "out", written) as file:
            write_ids(file, stream, 1, 4, np.dtype("<u4"))
        assert told == [1]
    data = np.array([2, 3, 4], "<u4").tobytes()
    assert (tmp_path / "out").read_bytes() == data
    assert written.rows == {"out": (12, xxhash.xxh3_128_hexdigest(data))}
    with new_file(tmp_path / "out", written) as file:
        assert file is None
