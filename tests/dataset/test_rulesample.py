"""Rules that leave nothing are refused by a sample, before a long run; others are not touched."""

from __future__ import annotations

import functools
import gzip
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus import reading
from lowtide.corpus.inputs import expand_inputs
from lowtide.dataset import chosen, rulesample
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.rulesample import SampleLimits, require_some_kept
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import DataError

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from fasttext_files import TinyModel

SHORT = [f"short text {number}" for number in range(9000)]
# A small corpus counts as a large one, in blocks of 4 KiB.
LIMITS = SampleLimits(long_run_bytes=50_000, block_bytes=4096, fewest_documents=500)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(SHORT))
    return path


def make_settings(*paths: Path, **more: Any) -> PrepareSettings:
    return PrepareSettings(
        input_files=paths, tokenization="char", min_document_chars=0,
        document_separator="\n\n", num_workers=1,
        **{"out_dir": Path("out"), "min_document_words": 4, **more},
    )  # fmt: skip


def look(*paths: Path, limits: SampleLimits = LIMITS, **more: Any) -> str:
    """What is said of a sample of these files, where it is not refused."""
    settings = make_settings(*paths, **more)
    notices: list[str] = []
    require_some_kept(
        settings,
        expand_inputs(settings.input_files, on_notice=notices.append),
        settings.reading(reader_bytes=1 << 20, budget_bytes=1 << 30),
        on_notice=notices.append,
        limits=limits,
    )
    return "\n".join(notices)


@pytest.mark.parametrize("engine", ["threads", "files"])
def test_rules_that_leave_nothing_are_refused_before_the_run(
    corpus: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_limits = functools.partial(require_some_kept, limits=LIMITS)
    monkeypatch.setattr(chosen, "require_some_kept", with_limits)
    with pytest.raises(
        DataError, match=r"nothing stays of [\d,]+ documents.*removed by"
    ) as refused:
        prepare_dataset(make_settings(corpus, engine=engine))
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
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its beginning is known, and what stays may come after it."""
    packed = Path("a.txt.gz")
    packed.write_bytes(gzip.compress("\n\n".join([*SHORT, LONG]).encode()))
    opened: list[int] = []
    monkeypatch.setattr(
        rulesample, "iter_blocks",
        lambda *given: opened.append(1) or reading.iter_blocks(*given),
    )  # fmt: skip
    assert re.search(WARNING, look(packed, limits=replace(LIMITS, places=12)))
    assert len(opened) == 1


def test_files_that_were_not_looked_at_decide_nothing(corpus: Path) -> None:
    other = Path("b.txt")
    other.write_text(LONG)
    one = replace(LIMITS, most_files=1)
    assert re.search(WARNING, look(corpus, other, limits=one))
    assert re.search(WARNING, look(corpus, score=write_model()))
    with pytest.raises(DataError, match="nothing stays of"):
        look(corpus)


def test_few_documents_decide_nothing(corpus: Path) -> None:
    """Long ones are few in as many bytes."""
    few = replace(LIMITS, fewest_documents=1_000_000)
    assert re.search(WARNING, look(corpus, limits=few))
    assert look(corpus, limits=replace(few, fewest_told=1_000_000)) == ""


def test_the_highest_scores_are_no_part_of_the_sample(corpus: Path) -> None:
    given = {"score": write_model(), "keep_top": 0.1}
    assert look(corpus, **given, min_document_words=2) == ""
    with pytest.raises(DataError, match="nothing stays of"):
        look(corpus, **given)


def test_what_cannot_be_read_ends_the_sample(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading.read_block

    def read_block(stream: Any, number: int, options: Any) -> Any:
        if number > 30:
            raise DataError("damaged")
        return whole(stream, number, options)

    monkeypatch.setattr(rulesample, "read_block", read_block)
    assert look(corpus) == ""


def test_one_document_that_stays_is_enough(corpus: Path) -> None:
    """Wherever it is: the sample goes all over a corpus, and a small one is not sampled."""
    corpus.write_text("\n\n".join([*SHORT[:-40], LONG, *SHORT[-40:]]))
    assert look(corpus, limits=replace(LIMITS, places=4096)) == ""  # every block
    corpus.write_text("\n\n".join(SHORT))
    assert look(corpus, limits=replace(LIMITS, long_run_bytes=1 << 30)) == ""
