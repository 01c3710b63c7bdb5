"""Rules that leave nothing are refused by a sample, before a long run; others are not touched."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from lowtide.dataset import sampling
from lowtide.dataset.preparation import prepare_dataset
from lowtide.errors import DataError

SHORT = [f"short text {number}" for number in range(9000)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus that counts as a large one, in blocks of 4 KiB."""
    monkeypatch.setattr(sampling, "_LONG_RUN_BYTES", 50_000)
    monkeypatch.setattr(sampling, "_BLOCK_BYTES", 4096)
    monkeypatch.setattr(sampling, "_FEWEST_DOCUMENTS", 500)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(SHORT))
    return path


def prepare(path: Path, **more: Any) -> Any:
    return prepare_dataset(
        input_files=[path], tokenization="char", min_document_words=4, min_document_chars=0,
        document_separator="\n\n", num_workers=1, **{"out_dir": "out", **more},
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["threads", "files"])
def test_rules_that_leave_nothing_are_refused_before_the_run(corpus: Path, engine: str) -> None:
    with pytest.raises(
        DataError, match=r"nothing stays of [\d,]+ documents.*removed by"
    ) as refused:
        prepare(corpus, engine=engine)
    assert "document_few_words" in str(refused.value) and "--dry-run" in str(refused.value)
    assert not Path("out").exists() and not Path("out.work").exists()


def test_what_is_read_in_order_is_looked_at_too(corpus: Path) -> None:
    packed = Path("a.txt.gz")
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    with pytest.raises(DataError, match="nothing stays of"):
        prepare(packed)


def test_one_document_that_stays_is_enough(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: the sample goes all over a corpus, and a small one is not sampled."""
    far = [*SHORT[:-40], "here are many more words than the rules ask of a text", *SHORT[-40:]]
    corpus.write_text("\n\n".join(far))
    monkeypatch.setattr(sampling, "_PLACES", 4096)  # every block
    assert prepare(corpus).info is not None
    monkeypatch.setattr(sampling, "_LONG_RUN_BYTES", 1 << 30)
    corpus.write_text("\n\n".join(SHORT))
    with pytest.raises(DataError, match="tokens are left after cleaning"):
        prepare(corpus, out_dir="other")
