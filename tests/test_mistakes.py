"""What users get wrong ends in a clear message and leaves nothing half-written, for every stage."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide import cli
from lowtide.files import hold_lock

TEXT = "".join(f"line {number} of a text about nothing in particular\n" for number in range(2000))


def command(verb: str, text: Path, out: Path) -> list[str]:
    """Return the smallest command line of `verb` that reads `text` and writes to `out`."""
    flags = {
        "train-tokenizer": ["--input", str(text), "--vocab-size", "300", "--out-dir", str(out)],
        "prepare": ["--input-files", str(text), "--tokenization", "char", "--out-dir", str(out)],
        "train": [
            *("--input-file", str(text), "--tokenization", "char", "--model-name", "m"),
            *("--checkpoints-dir", str(out), "--max-iters", "2", "--target-params", "20000"),
            *("--seq-len", "16", "--batch-size", "2", "--device", "cpu"),
        ],
    }
    return [verb, *flags[verb]]


VERBS = ["train-tokenizer", "prepare", "train"]
SHARED = ["train-tokenizer", "prepare", "append"]  # by several workers, too


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def assert_explained(
    words: list[str], capsys: pytest.CaptureFixture[str], *expected: str, code: int = 1
) -> None:
    """Run a command that cannot work and check how it ends."""
    assert cli.main(words) == code
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "unexpected" not in message
    assert "error: " in message
    for part in expected:
        assert part in message


def files_in(folder: Path) -> list[str]:
    """Return the outputs under `folder`: hidden files are work in progress, metrics.jsonl a log."""
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        str(name)
        for name in names
        if name.name != "metrics.jsonl"
        and not any(part.startswith(".") for part in name.parts)
        and name.parts[:2] != ("m", "data")  # the text as tokens, which a run keeps to go on from
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = command(verb, tmp_path / "absent.txt", tmp_path / "out")
    assert_explained(words, capsys, "absent.txt", "next: ")
    assert files_in(tmp_path / "out") == []


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert_explained(command(verb, tmp_path / "empty.txt", tmp_path / "out"), capsys, "next: ")
    assert files_in(tmp_path / "out") == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_budget_of_1_mib_names_one_that_would_do(
    verb: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command(verb, text, tmp_path / "out"), "--memory", "1MiB"]
    assert_explained(words, capsys, "1.0 MiB", "next: ", "--memory ")
    assert files_in(tmp_path / "out") == []


@pytest.mark.parametrize("verb", [*VERBS, "demo", "report", "append"])
def test_another_command_at_work_is_named(
    verb: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = {
        "demo": ["demo", "--out-dir", str(out)],
        "append": ["append", str(out), "--input-files", str(text)],
        "report": ["report", str(out)],
    }.get(verb)
    held = {"train": out / "m", "report": out / "report.html"}.get(verb, out)
    if verb in ("report", "append"):
        assert cli.main(command("prepare", text, out)) == 0
    with hold_lock(held, create_folder=verb not in ("report", "append")):
        before = files_in(out)
        expected = f"another lowtide command is at work here: process {os.getpid()} on "
        assert_explained(words or command(verb, text, out), capsys, expected, str(held), code=2)
        assert files_in(out) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_size_that_is_none(
    verb: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command(verb, text, tmp_path / "out"), "--memory", "lots"]
    assert_explained(words, capsys, "'lots' is not a size", "next: ", code=2)
    assert files_in(tmp_path / "out") == []


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_flag(
    verb: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command(verb, text, tmp_path / "out"), "--memry", "1GiB"]) == 2
    message = capsys.readouterr().err
    assert "--memry" in message
    assert "--memory" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_an_output_folder_whose_parent_is_a_file(
    verb: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_explained(command(verb, text, text / "out"), capsys, str(text), "next: ")


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system with the options the test names; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this sandbox forbids mounting")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("small_disk", ["ro"], indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_cannot_be_written(
    verb: str, small_disk: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(verb, text, small_disk / "out")
    assert_explained(words, capsys, "read-only", str(small_disk), "next: ")


@pytest.mark.parametrize("small_disk", ["size=16k"], indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(
    verb: str, small_disk: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(verb, text, small_disk / "out")
    assert_explained(words, capsys, "disk", str(small_disk), "next: ")
    last = "tokenizer.json" if verb == "train-tokenizer" else "dataset_metadata.json"
    for name in files_in(small_disk):
        assert not name.endswith((last, ".safetensors"))
        if name.endswith(".json"):
            json.loads((small_disk / name).read_text(encoding="utf-8"))  # what is there is whole


@pytest.mark.parametrize("small_disk", ["size=64k"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "engine"),
    [
        *((verb, engine) for verb in SHARED for engine in ("threads", "files")),
        ("pretokenize", None),
    ],
)
def test_a_full_disk_of_temporary_files(
    verb: str,
    engine: str | None,
    small_disk: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if verb == "append":
        assert cli.main(command("prepare", text, tmp_path / "out")) == 0
    plain = io.BytesIO()
    lines = pa.array([f"line {number} of this table" for number in range(20_000)])
    pq.write_table(pa.table({"text": lines}), plain, compression="NONE")
    table = tmp_path / "table.parquet.gz"  # such a file is unpacked before it is read
    table.write_bytes(gzip.compress(plain.getvalue()))
    words = {
        "append": ["append", str(tmp_path / "out"), "--input-files", str(table)],
        "pretokenize": ["pretokenize", str(table), "--out-path", str(tmp_path / "a.npy")],
    }.get(verb) or command(verb, table, tmp_path / "out")
    if engine is not None:
        words += ["--engine", engine]
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    assert_explained(words, capsys, "the disk is full", f"file: {small_disk}\n", "set TMPDIR")


@pytest.mark.usefixtures("ordinary_user")
@pytest.mark.parametrize("verb", VERBS)
def test_no_permission(
    verb: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert_explained(command(verb, text, closed / "out"), capsys, "permission denied", "next: ")


@pytest.mark.usefixtures("ordinary_user")
@pytest.mark.parametrize(
    ("verb", "is_there"),
    [
        *(
            (verb, is_there)
            for verb in ("train-tokenizer", "prepare")
            for is_there in (True, False)
        ),
        ("append", True),
    ],
)
def test_workers_that_may_not_write_their_output_begin_no_work(
    verb: str, is_there: bool, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "closed" / "out", tmp_path / "work"
    out.mkdir(parents=True)
    words = command("prepare" if verb == "append" else verb, text, out)
    closed = out
    if verb == "append":
        assert cli.main(words) == 0
        (tmp_path / "more.txt").write_text("a line that is new here\n" * 3)
        words = ["append", str(out), "--input-files", str(tmp_path / "more.txt")]
    elif not is_there:
        out.rmdir()
        closed = out.parent
    closed.chmod(0o555)
    words += ["--engine", "files", "--work-dir", str(work)]
    assert_explained(words, capsys, "permission denied", f"file: {closed}\n", "next: ")
    assert not work.exists()
    closed.chmod(0o755)
    assert list(closed.glob(".*.partial")) == []
    assert cli.main(words) == 0
