"""Steps of users: found, refused, run in processes, and errors that say where."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus import stepprocess, usersteps
from lowtide.corpus.usersteps import (
    StepError,
    apply_step,
    canonical_step,
    step_bytes,
    step_checksum,
    stop_steps,
)
from lowtide.errors import DataError, LowtideError, UsageError

SOURCE = """import os, random
from helper import shout as loud

def keep(text):
    print("what a function prints is no answer")
    if "drop" in text:
        return None
    if "fail" in text:
        return text[1000]
    if "number" in text:
        return 7
    if "die" in text:
        os.kill(os.getpid(), 9)
    if "dice" in text:
        return str(random.random())
    return loud(text) if "loud" in text else text
"""


@pytest.fixture
def step(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("def shout(text):\n    return text.upper()\n")
    (tmp_path / "my_rules.py").write_text(SOURCE)
    yield f"{tmp_path / 'my_rules.py'}:keep"
    stop_steps()


def run(step: str, texts: list[bytes], **limits: int) -> list[bytes | None]:
    made = apply_step(step, [memoryview(text) for text in texts], **limits)
    return [None if text is None else bytes(text) for text in made]


def test_what_a_function_does(step: str) -> None:
    texts = [b"stays", b"drop it", "loud \u00e9".encode(), b""]
    expected = [b"stays", None, "LOUD \u00c9".encode(), b""]
    assert run(step, texts) == expected
    assert run(step, texts, batch_bytes=1) == expected
    assert run(step, []) == []


def test_random_numbers_depend_on_the_text_alone(step: str) -> None:
    first = run(step, [b"dice a", b"dice b"])
    stop_steps()
    assert run(step, [b"dice b", b"stays", b"dice a"]) == [first[1], b"stays", first[0]]
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"fail", r"IndexError: string index out of range \(my_rules\.py, line 9\)"),
        (b"number", "TypeError: it returned int, expected str or None"),
    ],
)
def test_a_failure_says_where(step: str, text: bytes, why: str) -> None:
    with pytest.raises(StepError, match=why) as caught:
        run(step, [b"stays", b"drop", text])
    assert caught.value.document == 2
    assert run(step, [b"stays"]) == [b"stays"]  # by another process


def test_a_process_that_dies_is_named(step: str) -> None:
    with pytest.raises(DataError, match=f"ended \\(signal {signal.SIGKILL.value}\\)"):
        run(step, [b"die"])


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import json\nimport no_such_package\n\ndef keep(text):\n    return text\n")
    with pytest.raises(DataError, match=r"ModuleNotFoundError.*\(bad\.py, line 2\)"):
        step_bytes(canonical_step(f"{path}:keep"))
    path.write_text("import os\nos._exit(3)\n\ndef keep(text):\n    return text\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(DataError, match=r"ended \(exit code 3\)") as failed:
        step_bytes(canonical_step(f"{path}:keep"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before, (
        failed
    )  # held: nothing is collected


def test_names_that_are_none(step: str, tmp_path: Path) -> None:
    path = tmp_path / "my_rules.py"
    assert canonical_step(f"{path}:loud") == f"{path}:loud"  # imported is as good as defined
    for wrong, why in [
        ("my_rules.py", "is not FILE.py:FUNCTION"),
        (f"{path}:", "is not FILE.py:FUNCTION"),
        (f"{path}:nothing", "'nothing' is not defined in this file"),
    ]:
        with pytest.raises(UsageError, match=why):
            canonical_step(wrong)
    with pytest.raises(LowtideError, match="no such file"):
        canonical_step(f"{tmp_path}/none.py:keep")
    path.write_text("def keep(text)\n")
    with pytest.raises(UsageError, match="not a readable Python file"):
        canonical_step(f"{path}:keep")


def test_the_checksum_is_of_source_and_name(step: str, tmp_path: Path) -> None:
    known = step_checksum(step)
    assert step_checksum(step.replace(":keep", ":loud")) != known
    (tmp_path / "moved.py").write_text(SOURCE)
    assert step_checksum(f"{tmp_path / 'moved.py'}:keep") == known
    (tmp_path / "moved.py").write_text(SOURCE + "\n")
    assert step_checksum(f"{tmp_path / 'moved.py'}:keep") != known


def test_what_a_process_takes_is_measured(step: str) -> None:
    assert 5 << 20 < step_bytes(step) < 200 << 20
    assert sum(map(len, usersteps._idle.values())) == 1
    stop_steps()
    assert not usersteps._idle


def test_a_function_that_makes_too_much_of_a_block_is_stopped(tmp_path: Path) -> None:
    few = {"most_small_bytes": 100}
    functions = (
        "def twice(text):\n    return text * 2\n",
        "def thrice(text):\n    return text * 3\n",
    )
    (tmp_path / "grow.py").write_text("".join(functions))
    step = f"{tmp_path / 'grow.py'}:twice"
    assert run(step, [b"a" * 400, b"b" * 600], **few) == [b"a" * 800, b"b" * 1200]
    assert run(step, [b"a" * 20], **few) == [b"a" * 40]
    step = f"{tmp_path / 'grow.py'}:thrice"
    assert run(step, [b"a" * 30], **few) == [b"a" * 90]
    with pytest.raises(StepError, match=r"made 1.8 KiB of one document, .* 2 times") as failed:
        run(step, [b"a" * 10, b"b" * 600], **few)
    assert failed.value.document == 1
    stop_steps()


def answers_of(path: Path, name: str, texts: list[bytes]) -> list[tuple[int, bytes]]:
    """What the process would answer, in this one."""
    function = stepprocess.load(str(path), name)
    found = [stepprocess.judge(function, text, str(path)) for text in texts]
    heads = [stepprocess.HEAD.unpack(head) for head, _ in found]
    assert [size for _, size in heads] == [len(data) for _, data in found]
    return [(kind, data) for (kind, _), (_, data) in zip(heads, found, strict=True)]


def test_every_answer_of_the_process(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    monkeypatch.setitem(sys.modules, "lowtide_step", sys)
    path = tmp_path / "my_rules.py"
    texts = [
        b"stays",
        b"drop",
        b"loud",
        b"fail",
        b"number",
        b"\xff",
        b"dice 1",
        b"dice 2",
        b"dice 1",
    ]
    found = answers_of(path, "keep", texts)
    assert sys.path[0] == str(tmp_path)
    assert sys.modules["lowtide_step"].__name__ == "lowtide_step"
    assert found[:5] == [
        (stepprocess.KEPT, b""),
        (stepprocess.DROPPED, b""),
        (stepprocess.CHANGED, b"LOUD"),
        (stepprocess.FAILED, b"IndexError: string index out of range (my_rules.py, line 9)"),
        (stepprocess.FAILED, b"TypeError: it returned int, expected str or None"),
    ]
    assert found[5][0] == stepprocess.FAILED and found[5][1].startswith(b"UnicodeDecodeError: ")
    assert found[6] == found[8] != found[7]
    assert capsys.readouterr().out.count("no answer") == 8


def test_what_cannot_be_loaded_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "lowtide_step", sys)
    for number, (source, why) in enumerate(
        (
            ("x = 1\n", "TypeError: x is not a function"),
            ("\n\nx = 1 / 0\n", "ZeroDivisionError: division by zero (rules.py, line 3)"),
            (
                "x = 1\ny = (\n",
                "SyntaxError: '(' was never closed (rules.py, line 2) (rules.py, line 2)",
            ),
        )
    ):
        path = tmp_path / str(number) / "rules.py"
        path.parent.mkdir()
        path.write_text(source)
        with pytest.raises(BaseException) as caught:
            stepprocess.load(str(path), "x")
        assert stepprocess.describe(caught.value, str(path)).decode() == why


def test_answers_are_sent_at_once() -> None:
    class File(io.BytesIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    file = File()
    stepprocess.answer(file, stepprocess.CHANGED, b"text")
    assert file.getvalue() == b"\2" + (4).to_bytes(8, "little") + b"text"
    assert file.flushes == 1


def test_a_block_is_given_in_batches(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends with the text that fills it; texts have the number that they have among all."""
    asked: list[tuple[list[bytes], int]] = []
    judge = usersteps._StepProcess.judge

    def note(self: Any, texts: Any, first: int) -> Any:
        asked.append((list(map(bytes, texts)), first))
        return judge(self, texts, first)

    monkeypatch.setattr(usersteps._StepProcess, "judge", note)
    texts = [b"ab", b"c", b"def", b"g", b"h", b"i"]
    assert run(step, texts, batch_bytes=3) == texts
    assert asked == [([b"ab", b"c"], 0), ([b"def"], 2), ([b"g", b"h", b"i"], 3)]
    asked.clear()
    assert run(step, texts[:5], batch_bytes=3) == texts[:5]
    assert asked[-1] == ([b"g", b"h"], 3)


@pytest.mark.parametrize(("small", "room"), [(0, 20), (19, 20), (20, 20), (21, 21), (50, 50)])
def test_a_block_may_become_twice_as_long(
    step: str, monkeypatch: pytest.MonkeyPatch, small: int, room: int
) -> None:
    rooms: list[int] = []

    def judge(self: Any, texts: Any, first: int) -> Any:
        rooms.append(self.room_bytes)
        return iter(texts)

    monkeypatch.setattr(usersteps._StepProcess, "judge", judge)
    run(step, [b"12345", b"67890"], batch_bytes=1, most_small_bytes=small)
    assert rooms == [room, room]


def test_answers_use_up_the_room(step: str) -> None:
    """Up to the last byte; a process that said too much is not used again."""
    texts = [b"loud 1", b"loud 2", b"stays", b"drop"]
    assert run(step, texts, most_small_bytes=0)[:2] == [b"LOUD 1", b"LOUD 2"]
    with usersteps._borrow(step) as process:
        first = process
    for room, fails in ((12, False), (11, True)):
        with usersteps._borrow(step) as process:
            assert process is first
            process.room_bytes = room
            made = process.judge([memoryview(text) for text in texts], 5)
            if not fails:
                assert [None if one is None else bytes(one) for one in made] == [
                    b"LOUD 1", b"LOUD 2", b"stays", None,
                ]  # fmt: skip
                continue
            with pytest.raises(StepError, match="may become 2 times as long") as caught:
                list(made)
            assert caught.value.document == 6
            assert caught.value.message.startswith("--step made 6 B of one document")
    with pytest.raises(StepError), usersteps._borrow(step) as process:
        raise StepError("no")
    with usersteps._borrow(step) as process:
        assert process is not first
    assert first._process.returncode is not None


def test_processes_are_stopped_once(step: str) -> None:
    with usersteps._borrow(step) as one, usersteps._borrow(step) as other:
        assert one is not other
    stop_steps()
    assert usersteps._idle == {}
    assert [process._process.returncode for process in (one, other)] == [-signal.SIGKILL] * 2
    assert all(pipe.closed for process in (one, other) for pipe in process._pipes)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os._exit(0)", "exit code 0"),
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_how_a_process_ended_is_said(tmp_path: Path, code: str, how: str) -> None:
    path = tmp_path / "rules.py"
    path.write_text(f"import os\n\ndef end(text):\n    {code}\n")
    with pytest.raises(DataError) as caught:
        run(f"{path}:end", [b"a"])
    assert caught.value.message == (
        f"the process of --step ended ({how}) before its documents were done"
    )
