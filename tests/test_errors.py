"""Errors say what, where and what next; every exit code is the documented one."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest

import lowtide
from lowtide.errors import (
    BudgetError,
    DataError,
    LowtideError,
    UsageError,
    from_device_error,
    from_lost_process,
    from_os_error,
    printable,
    warn,
)

from .sources import nodes_of


def test_message_path_and_next_step_in_this_order() -> None:
    error = DataError("half a shard", path=Path("a/b.bin"), next_step="prepare again")
    assert str(error) == "half a shard\n  file: a/b.bin\n  next: prepare again"
    assert str(LowtideError("only this")) == "only this"


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def test_a_device_without_room_is_told_from_other_errors() -> None:
    said = (
        "CUDA out of memory. Tried to allocate 12.00 MiB. GPU 0 has 1 GiB of which 9 MiB is free."
    )
    more = " Process 62 has 1 GiB in use. Including non-PyTorch memory, this process has 6 MiB."
    for text in (said, said + more, f"{said}\nmore", said + " Including all, this has 6 MiB."):
        found = from_device_error(OutOfMemoryError(text))
        assert isinstance(found, BudgetError) and "nvidia-smi" in str(found)
        assert found.message == f"the device has no memory left: {said}"
    assert from_device_error(RuntimeError(said)) is None


@pytest.mark.parametrize(
    "said",
    [
        "[pair.cc:553] Connection closed by peer [127.0.0.1]:7068. This is typically caused by",
        "[pair.cc:547] Read error [127.0.0.1]:7068: Connection reset by peer",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exited prematurely.",
    ],
)
def test_a_process_whose_partner_has_ended_says_so(said: str) -> None:
    found = from_lost_process(RuntimeError(said))
    assert found is not None and found.message == "another process of this run has ended"
    assert from_lost_process(ValueError(said)) is None
    assert from_lost_process(RuntimeError("shapes differ")) is None


@pytest.mark.parametrize(
    ("kind", "code"), [(LowtideError, 1), (BudgetError, 1), (DataError, 1), (UsageError, 2)]
)
def test_exit_codes(kind: type[LowtideError], code: int) -> None:
    assert issubclass(kind, LowtideError)
    assert kind("x").exit_code == code


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.ENOENT, "no such file"),
        (errno.EISDIR, "a folder, a file was expected"),
        (errno.ENOTDIR, "is a file, not a folder"),
    ],
)
def test_system_errors_name_the_file_and_the_next_step(number: int, words: str) -> None:
    error = from_os_error(OSError(number, os.strerror(number), "some/where"))
    assert words in error.message
    assert error.path == "some/where"
    assert error.next_step
    assert error.exit_code == 1


def test_unknown_system_errors_keep_the_systems_words() -> None:
    assert from_os_error(OSError(errno.EDOM, "strange domain", "x")).message == "strange domain"
    assert from_os_error(OSError("no number at all")).message == "no number at all"


def test_escape_sequences_are_written_out() -> None:
    assert printable("a\x1b[2Jb\x9bc\r\x00\x7f") == "a\\x1b[2Jb\\x9bc\\x0d\\x00\\x7f"
    plain = "line\n\tÜbung 東京 😀\u200f"
    assert printable(plain) == plain


def test_warnings_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    warn("note: \x1b[31m")
    assert capsys.readouterr().err == "note: \\x1b[31m\n"


def test_nothing_reaches_stderr_but_through_printable() -> None:
    """What is printed there may hold names, texts and metadata of strangers."""
    raw: list[str] = []
    for path in Path(lowtide.__file__).parent.rglob("*.py"):
        for node in nodes_of(path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            streams = [ast.unparse(k.value) for k in node.keywords if k.arg == "file"]
            if node.func.id != "print" or streams != ["sys.stderr"]:
                continue
            text = node.args[0]
            if not (isinstance(text, ast.Constant) or ast.unparse(text).startswith("printable(")):
                raw.append(f"{path.name}:{node.lineno}")
    # Its words are the program's own.
    assert not [place for place in raw if not place.startswith("diagnostics.py:")], raw


def test_the_advice_for_a_file_that_changed() -> None:
    error = from_os_error(OSError(errno.ESTALE, "Stale file handle", "a.txt"))
    assert error.message == "this file was changed while it was read"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("data/dataset_metadata.json", "make it anew with lowtide prepare"),
        ("hf/model.safetensors", "(train or export)"),
        ("notes.txt", "bring the file back as it was, or name another one"),
    ],
)
def test_damage_always_has_a_next_step(name: str, step: str) -> None:
    assert step in str(DataError("damaged", path=name))
    assert str(DataError("damaged", path=name, next_step="mine")).endswith("  next: mine")
    assert "next:" in str(from_os_error(OSError(9999, "something new")))
