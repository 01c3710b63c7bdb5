"""Rules that leave nothing are refused by a sample, before a long run; others are not touched."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus import reading
from lowtide.dataset import rulesample
from lowtide.dataset.preparation import prepare_dataset
from lowtide.errors import DataError

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from fasttext_files import TinyModel

SHORT = [f"short text {number}" for number in range(9000)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus that counts as a large one, in blocks of 4 KiB."""
    monkeypatch.setattr(rulesample, "_LONG_RUN_BYTES", 50_000)
    monkeypatch.setattr(rulesample, "_BLOCK_BYTES", 4096)
    monkeypatch.setattr(rulesample, "_FEWEST_DOCUMENTS", 500)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(SHORT))
    return path


def prepare(*paths: Path, **more: Any) -> Any:
    return prepare_dataset(
        input_files=[*paths], tokenization="char", min_document_chars=0,
        document_separator="\n\n", num_workers=1,
        **{"out_dir": "out", "min_document_words": 4, **more},
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["threads", "files"])
def test_rules_that_leave_nothing_are_refused_before_the_run(corpus: Path, engine: str) -> None:
    with pytest.raises(
        DataError, match=r"nothing stays of [\d,]+ documents.*removed by"
    ) as refused:
        prepare(corpus, engine=engine)
    assert "document_few_words" in str(refused.value) and "--dry-run" in str(refused.value)
    assert not Path("out").exists() and not Path("out.work").exists()


LONG = "here are many more words than the rules ask of a text"
WARNING = r"warning: nothing stays of [\d,]+ documents from .*: removed by .*; going on"


def write_model() -> str:
    """A model that finds everything good."""
    TinyModel(
        words=["short"], labels=["hq", "cc"], dim=4, rows=[[3.0, 0, 0, 0]],
        outputs=[[1.0, 0, 0, 0], [-1.0, 0, 0, 0]],
    ).write(Path("model.bin"))  # fmt: skip
    return "model.bin"


def test_what_is_read_in_order_is_read_once_and_decides_nothing(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its beginning is known, and what stays may come after it."""
    packed = Path("a.txt.gz")
    packed.write_bytes(gzip.compress("\n\n".join([*SHORT, LONG]).encode()))
    corpus.unlink()
    monkeypatch.setattr(rulesample, "_PLACES", 12)
    opened: list[int] = []
    monkeypatch.setattr(
        rulesample, "iter_blocks",
        lambda *given: opened.append(1) or reading.iter_blocks(*given),
    )  # fmt: skip
    assert prepare(packed).info is not None
    assert len(opened) == 1
    assert re.search(WARNING, capsys.readouterr().err)


def test_files_that_were_not_looked_at_decide_nothing(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path("b.txt")
    other.write_text(LONG)
    monkeypatch.setattr(rulesample, "_MOST_FILES", 1)
    assert prepare(corpus, other).info is not None
    assert re.search(WARNING, capsys.readouterr().err)
    with pytest.raises(DataError, match="tokens are left after cleaning"):
        prepare(corpus, score=write_model(), out_dir="judged")
    assert re.search(WARNING, capsys.readouterr().err)


def test_few_documents_decide_nothing(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long ones are few in as many bytes."""
    monkeypatch.setattr(rulesample, "_FEWEST_DOCUMENTS", 1_000_000)
    with pytest.raises(DataError, match="tokens are left after cleaning"):
        prepare(corpus)
    assert re.search(WARNING, capsys.readouterr().err)
    monkeypatch.setattr(rulesample, "_FEWEST_TOLD", 1_000_000)
    with pytest.raises(DataError, match="tokens are left after cleaning"):
        prepare(corpus, out_dir="untold")
    assert not re.search(WARNING, capsys.readouterr().err)


def test_the_highest_scores_are_no_part_of_the_sample(corpus: Path) -> None:
    given = {"score": write_model(), "keep_top": 0.1}
    assert prepare(corpus, **given, min_document_words=2).info is not None
    with pytest.raises(DataError, match="nothing stays of"):
        prepare(corpus, **given, out_dir="other")


def test_what_cannot_be_read_ends_the_sample(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.write_text("\n\n".join([*SHORT, LONG]))
    whole = reading.read_block

    def read_block(stream: Any, number: int, options: Any) -> Any:
        if number > 30:
            raise DataError("damaged")
        return whole(stream, number, options)

    monkeypatch.setattr(rulesample, "read_block", read_block)
    assert prepare(corpus).info is not None
    assert "nothing stays" not in capsys.readouterr().err


def test_one_document_that_stays_is_enough(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: the sample goes all over a corpus, and a small one is not sampled."""
    far = [*SHORT[:-40], LONG, *SHORT[-40:]]
    corpus.write_text("\n\n".join(far))
    monkeypatch.setattr(rulesample, "_PLACES", 4096)  # every block
    assert prepare(corpus).info is not None
    monkeypatch.setattr(rulesample, "_LONG_RUN_BYTES", 1 << 30)
    corpus.write_text("\n\n".join(SHORT))
    with pytest.raises(DataError, match="tokens are left after cleaning"):
        prepare(corpus, out_dir="other")
