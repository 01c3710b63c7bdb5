"""Encoding blocks as soon as they are clean: the same dataset for any size of the table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus.deduplication import TABLE_ROW_BYTES
from lowtide.corpus.workfiles import WorkFile
from lowtide.dataset import chosen, encoding, threaded
from lowtide.dataset.preparation import prepare_dataset
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, snapshot, write_corpus


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small tokenizer."""
    Tokenizer.from_merges([(b"i", b"n"), (b"l", b"o"), (b"lo", b"w")]).save(tmp_path / "tok")
    return str(tmp_path / "tok")


def prepare(tmp_path: Path, tokenizer: str, name: str, **options: object) -> dict[str, bytes]:
    corpus = tmp_path / "a.txt"
    if not corpus.exists():
        long_document = "\n".join(f"line {number} of a long document" for number in range(300))
        documents = [*make_documents(150), long_document, *make_documents(100, seed=1)]
        write_corpus(corpus, documents + make_documents(60))
    settings = {"tokenization": tokenizer, "tokens_per_shard": 1000, "memory": "1GiB", **options}
    prepare_dataset(input_files=[corpus], out_dir=tmp_path / name, block_bytes=2048, **settings)
    return snapshot(tmp_path / name)


def give_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let the table of the one pass hold this many hashes."""
    plan = chosen.plan_shares
    monkeypatch.setattr(
        chosen,
        "plan_shares",
        lambda *given: replace(plan(*given), one_pass_bytes=TABLE_ROW_BYTES * rows),
    )


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_full_table_decides_nothing(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    expected = prepare(tmp_path, tokenizer, "expected", shuffle=shuffle)
    for rows, workers in [(0, 1), (0, 3), (40, 3), (300, 1), (300, 3), (700, 3)]:
        with monkeypatch.context() as patch:
            give_rows(patch, rows)
            name = f"{rows}-{workers}"
            found = prepare(tmp_path, tokenizer, name, shuffle=shuffle, processes=workers)
        assert found == expected, name


def test_without_deduplication_there_is_no_table(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(tmp_path, tokenizer, "one", dedup=False, processes=1)
    give_rows(monkeypatch, 0)
    assert prepare(tmp_path, tokenizer, "four", dedup=False, processes=4) == expected


def test_a_failing_block_ends_the_command_and_the_next_one_goes_on(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(tmp_path, tokenizer, "expected")
    real = encoding.write_work_file

    def fail(path: Path, *given: Any) -> WorkFile:
        if path.name == "0000000-0000005.ids":
            raise DataError("no more of this", path=path)
        return real(path, *given)

    monkeypatch.setattr(encoding, "write_work_file", fail)
    with pytest.raises(DataError, match="no more of this"):
        prepare(tmp_path, tokenizer, "out", processes=3)
    monkeypatch.setattr(encoding, "write_work_file", real)
    assert prepare(tmp_path, tokenizer, "out", processes=2) == expected


def test_ids_that_were_lost_are_made_again(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: the text of those blocks is only in the inputs."""
    expected = prepare(tmp_path, tokenizer, "expected")

    def stop(*given: object, **named: object) -> None:
        raise DataError("stopped before the shards")

    with monkeypatch.context() as patch:
        patch.setattr(threaded, "plan_shards", stop)
        with pytest.raises(DataError, match="stopped"):
            prepare(tmp_path, tokenizer, "out")
    lost = sorted((tmp_path / "out" / ".work").glob("encoded-*/*.ids"))[3:9:2]
    assert len(lost) == 3
    for path in lost:
        path.unlink()
    assert prepare(tmp_path, tokenizer, "out") == expected


def test_the_command_goes_without_numpy(tmp_path: Path) -> None:
    """Importing it takes 0.15 s, during which nothing else can start."""
    write_corpus(tmp_path / "a.txt", make_documents(50))
    Tokenizer.from_merges([(b"i", b"n")]).save(tmp_path / "tok")
    words = [
        "prepare",
        "--input-files",
        str(tmp_path / "a.txt"),
        "--out-dir",
        str(tmp_path / "out"),
    ]
    words += ["--tokenization", str(tmp_path / "tok"), "--memory", "512MiB"]
    program = (
        "import sys; from lowtide.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 3 * ('numpy' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
