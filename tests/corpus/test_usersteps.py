"""Steps of users: found, refused, run in processes, and errors that say where."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lowtide.corpus import usersteps
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
