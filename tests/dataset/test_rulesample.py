"""Rules that leave nothing are rejected by a sample before a long run; others are unaffected."""

from __future__ import annotations

import functools
import gzip
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
    """The message about a sample of these files, if it is not an error."""
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
    """Only its beginning is read, and documents to keep may come after it."""
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
    """The same number of bytes has few long ones."""
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
    """Wherever it is: the sample is spread over the corpus, and a small corpus is not sampled."""
    corpus.write_text("\n\n".join([*SHORT[:-40], LONG, *SHORT[-40:]]))
    assert look(corpus, limits=replace(LIMITS, places=4096)) == ""  # every block
    corpus.write_text("\n\n".join(SHORT))
    assert look(corpus, limits=replace(LIMITS, long_run_bytes=1 << 30)) == ""


def test_a_sample_is_cleaned_without_what_only_all_text_tells() -> None:
    cleaning = make_settings(Path("a"), rules="c4").cleaning
    found = rulesample._sampled(replace(cleaning, dedup=True))
    assert found == replace(cleaning, dedup=False)
    ranked = replace(cleaning, dedup=True, keep_top=0.5, score="m.bin", score_label="good")
    assert rulesample._sampled(ranked) == replace(
        cleaning, dedup=False, keep_top=None, score="", score_label=""
    )


@pytest.mark.parametrize(
    ("documents", "changes", "said"),
    [
        (199, {}, None),  # too few for a conclusion
        (200, {}, "warning"),
        (19_999, {}, "warning"),
        (20_000, {}, "refused"),
        (20_000, {"random_access": False}, "warning"),
        (20_000, {"files": 1025}, "warning"),  # some were not read
        (20_000, {"unseen": True}, "warning"),
        (20_000, {"language_model": "lid"}, "warning"),
        (20_000, {"size": (256 << 20) - 1}, None),  # a small corpus is reported when it is prepared
        (None, {}, None),  # something is kept
    ],
)
def test_what_a_sample_of_which_nothing_stays_means(
    monkeypatch: pytest.MonkeyPatch,
    documents: int | None,
    changes: dict[str, Any],
    said: str | None,
) -> None:
    count = changes.get("files", 2)
    inputs: Any = [
        SimpleNamespace(index=number, size_bytes=5, format=SimpleNamespace(is_file=True))
        for number in range(count)
    ]
    seen = frozenset(range(count - 1 if changes.get("unseen") else count))
    report = SimpleNamespace(documents_in=documents)
    sample = None if documents is None else rulesample._Sample(report, 9, seen)  # type: ignore
    streams = [SimpleNamespace(random_access=changes.get("random_access", True))]
    monkeypatch.setattr(
        rulesample, "estimate_text_bytes", lambda inputs: changes.get("size", 256 << 20)
    )
    looked: list[int] = []
    monkeypatch.setattr(
        rulesample, "plan_streams", lambda rows, reading: looked.append(len(rows)) or streams
    )
    monkeypatch.setattr(rulesample, "_iter_sample", lambda *given: iter(()))
    monkeypatch.setattr(rulesample, "StreamPaths", lambda streams: None)
    monkeypatch.setattr(rulesample, "_find_none", lambda *given: sample)
    monkeypatch.setattr(rulesample, "_describe", lambda found: "nothing stays")
    settings: Any = make_settings(Path("a"))
    cleaning = replace(settings.cleaning, language_model=changes.get("language_model", ""))
    settings = SimpleNamespace(cleaning=cleaning, out_dir=Path("out"))
    notices: list[str] = []
    given: Any = (settings, inputs, settings_reading())
    if said == "refused":
        with pytest.raises(DataError, match="nothing stays"):
            require_some_kept(*given, on_notice=notices.append)
        assert notices == []
    else:
        require_some_kept(*given, on_notice=notices.append)
        words = "warning: nothing stays; going on, since the rest may be otherwise"
        assert notices == ([words] if said else [])
    assert looked == ([] if "size" in changes else [min(count, 1024)])


def settings_reading() -> Any:
    return make_settings(Path("a")).reading(reader_bytes=1 << 20, budget_bytes=1 << 30)


def test_places_are_spread_over_streams_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(
        rulesample, "read_block",
        lambda stream, spot, reading: read.append((stream.name, spot)) or (spot or None),
    )  # fmt: skip
    monkeypatch.setattr(
        rulesample, "iter_blocks",
        lambda stream, reading: (read.append((stream.name, n)) or n + 10 for n in range(99)),
    )  # fmt: skip

    def stream(name: str, blocks: int, *, random: bool = True) -> Any:
        return SimpleNamespace(name=name, num_blocks=blocks, random_access=random)

    one = [stream("a", 10)]
    assert list(rulesample._iter_sample(one, None, 4)) == [2, 5, 7]  # type: ignore[arg-type]
    assert read == [("a", 0), ("a", 2), ("a", 5), ("a", 7)]
    read.clear()
    several = [stream("a", 10), stream("b", 5, random=False), stream("c", 1)]
    assert list(rulesample._iter_sample(several, None, 4)) == [5, 10, 11]  # type: ignore[arg-type]
    assert read == [("a", 0), ("a", 5), ("b", 0), ("b", 1), ("c", 0)]
    assert list(rulesample._iter_sample([], None, 4)) == []  # type: ignore[arg-type]
