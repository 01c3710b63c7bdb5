"""Hashing of a part: what is stored of each block, and the content of the result."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset.staged import hashing
from lowtide.dataset.staged.hashing import HashStage
from lowtide.engine.tasks import Task, run_task


def job_of(**settings: Any) -> Any:
    usual: dict[str, Any] = {"dedup": True, "near": None, "cleaning": "cleaning", "keep_top": None}
    return SimpleNamespace(
        settings=SimpleNamespace(**(usual | settings)), collects_characters=True, grown=None,
        sizes=SimpleNamespace(partition_borders=lambda: "borders"), contamination_job=None,
        parts=[1, 2], records=SimpleNamespace(), first_input=lambda index: 40 + index,
        changed_between_passes=lambda number: ValueError(f"input {number}"),
    )  # fmt: skip


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A recorder of rows of hashes, documents that continue, and languages."""
    found: list[Any] = []

    class Rows:
        def __init__(self, sections: Any, borders: Any, waiting: Any) -> None:
            found.append(("rows", borders, waiting))

        def add(self, hashes: Any, ends: Any) -> None:
            found.append((hashes, ends))

        def write(self, output: Any) -> None:
            output.append(("hashes", b""))

    monkeypatch.setattr(hashing, "PartitionedRows", Rows)
    monkeypatch.setattr(
        hashing, "count_languages", lambda cleaned, options: (cleaned.name, options)
    )
    monkeypatch.setattr(
        hashing, "advance", lambda document, block, cleaned: found.append(("advance", block))
    )
    return found


def cleaned(name: str, characters: int) -> Any:
    return SimpleNamespace(
        name=name, hashes=f"{name} hashes", radix_ends="ends", text="text", documents="documents",
        counts="counts", samples="samples", documents_in=1, lines_in=2, bytes_in=3,
        characters=characters.to_bytes(4, "little"),
    )  # fmt: skip


@pytest.mark.parametrize("dedup", [True, False])
@pytest.mark.parametrize("is_char", [True, False])
@pytest.mark.parametrize("holds", [True, False])
def test_what_is_kept_of_every_block(
    monkeypatch: pytest.MonkeyPatch, noted: list[Any], dedup: bool, is_char: bool, holds: bool
) -> None:
    job = job_of(dedup=dedup)
    job.collects_characters = is_char
    rooms: list[int] = []
    scratch: Any = SimpleNamespace(hold=lambda room=0: rooms.append(room) or "waiting")
    kept: list[Any] = []
    held: Any = (
        SimpleNamespace(room_bytes=99, add=lambda *given: kept.append(given)) if holds else None
    )
    collected: list[bool] = []

    class Cleaning(list[Any]):
        stream_notices, block_notices = ("s",), ("b",)

    blocks = [
        ("one", cleaned("a", 0b101), [(3, "0a" * 16)]), ("two", cleaned("b", 1 << 9), []),
    ]  # fmt: skip
    monkeypatch.setattr(
        hashing, "CleanPart",
        lambda job, index, *, collect_characters: collected.append(collect_characters)
        or Cleaning(blocks),
    )  # fmt: skip
    part: Any = hashing._HashedPart(job, 0, scratch, held)
    assert rooms == [99 if holds else 0]
    assert collected == [is_char]
    added: list[Any] = []
    part._report = SimpleNamespace(
        add=lambda *given, **more: added.append((given, more)), as_state=lambda: "state"
    )
    part.read()
    hashes = [("a hashes", "ends"), ("b hashes", "ends")] if dedup else []
    assert [row for row in noted if row[0] not in ("rows", "advance")] == hashes
    assert [row for row in noted if row[0] == "advance"] == [("advance", "one"), ("advance", "two")]
    assert added == [
        (("counts", "samples"), {"documents_in": 1, "lines_in": 2, "bytes_in": 3,
                                 "languages": (name, "cleaning")})
        for name in ("a", "b")
    ]  # fmt: skip
    assert [one for one, _ in kept] == (["one", "two"] if holds else [])
    assert part.contents == hashing.CONTENT_ROW.pack(3, bytes([10] * 16))
    assert part.facts() == {"blocks": 2, "open_document": None}

    class Written(list[Any]):
        def section(self, name: str, data: bytes) -> None:
            self.append((name, data))

    output: Any = Written()
    assert part.write(output) == {
        "report": "state", "stream_notices": ("s",), "block_notices": ("b",),
    }  # fmt: skip
    characters = (0b101 | 1 << 9).to_bytes(2, "little") if is_char else b""
    assert output == [
        ("hashes", b""), ("contents", part.contents), ("characters", characters)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "grown", "scored", "refused"),
    [
        ({"keep_top": None}, None, b"other", False),
        ({"keep_top": 0.5}, "grown", b"other", False),  # its scores are the dataset's
        ({"keep_top": 0.5}, None, b"same", False),
        ({"keep_top": 0.5}, None, b"other", True),
    ],
)
def test_a_part_that_changed_since_it_was_scored_is_refused(
    settings: Any, grown: Any, scored: bytes, refused: bool
) -> None:
    job = job_of(**settings)
    job.grown = grown
    job.records.open = lambda task: SimpleNamespace(read=lambda name: memoryview(scored))
    stage = HashStage(job)
    assert stage.count_tasks() == 2
    if refused:
        with pytest.raises(ValueError, match="input 41"):
            stage._require_scored(1, b"same")
    else:
        stage._require_scored(1, b"same")


@pytest.mark.parametrize("holds", [True, False, None])
def test_a_part_is_encoded_ahead_where_it_is_held(
    monkeypatch: pytest.MonkeyPatch, holds: bool | None
) -> None:
    calls: list[Any] = []
    job = job_of()
    job.records = SimpleNamespace(
        scratch=lambda: contextlib.nullcontext("scratch"),
        write=lambda task, write, *, facts, after: calls.append(
            ("write", task, write, facts(), after)
        ),
    )

    def make(job: Any, index: int, scratch: Any, held: Any) -> Any:
        calls.append(("part", index, held))
        return SimpleNamespace(
            read=lambda: calls.append("read"), contents=b"c", write="write", facts=lambda: "facts"
        )

    monkeypatch.setattr(hashing, "_HashedPart", make)
    held = "held" if holds else None
    ahead: Any = SimpleNamespace(
        hold=lambda part: contextlib.nullcontext(held),
        encode=lambda *given: calls.append(("encode", *given)) or "ids",
    )
    stage = HashStage(job, None if holds is None else ahead)
    stage._require_scored = lambda index, contents: calls.append(("scored", contents))  # type: ignore
    run_task(stage, 1)
    expected: list[Any] = [("part", 1, held), "read", ("scored", b"c")]
    if holds:
        expected.append(("encode", 1, "held", "facts"))
    after = "ids" if holds else None
    assert calls == [*expected, ("write", Task("hash", 1), "write", "facts", after)]
