"""A dataset's page says where its tokens came from, how long documents are, what was removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.layout import load_dataset_info
from lowtide.dataset.preparation import prepare_dataset
from lowtide.reporting.datasetfacts import LengthCounts, count_lengths
from lowtide.reporting.datasets import DatasetReader, _cleaning
from lowtide.reporting.reports import report as make_report


def write_text(path: Path, num_documents: int, num_words: int) -> Path:
    documents = [
        "\n".join(f"{path.stem} {number} says word {word} once" for word in range(num_words))
        for number in range(num_documents)
    ]
    path.write_text("<|endoftext|>".join([*documents, documents[0]]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    inputs = [write_text(folder / "short.txt", 40, 2), write_text(folder / "long.txt", 10, 60)]
    prepare_dataset(
        input_files=inputs, out_dir=folder / "out", tokenization="char", tokens_per_shard=5000
    )
    return folder / "out"


def page_of(root: Path) -> dict[str, Any]:
    reader = DatasetReader(root)
    assert reader.read()
    return reader.page()


def section(page: dict[str, Any], id: str) -> dict[str, Any]:
    return next(section for section in page["sections"] if section["id"] == id)


def test_tokens_and_documents_by_source_add_up(dataset: Path) -> None:
    metadata = load_dataset_info(dataset).metadata
    sources = metadata["sources"]
    assert [Path(row["file"]).name for row in sources] == ["short.txt", "long.txt"]
    assert [row["documents"] for row in sources] == [40, 10]  # without the one that came twice
    assert sum(row["tokens"] for row in sources) == metadata["total_tokens"]
    rows = section(page_of(dataset), "sources")["rows"]
    assert [Path(row["name"]).name for row in rows] == ["long.txt", "short.txt"]
    assert "40 documents" in rows[1]["text"]


def test_appended_text_has_sources_and_removed_lines_of_its_own(
    dataset: Path, tmp_path: Path
) -> None:
    page = page_of(dataset)
    more = write_text(tmp_path / "more.txt", 5, 3)
    root = tmp_path / "copy"
    prepare_dataset(input_files=[more], out_dir=root, tokenization="char")
    append_to_dataset(dataset_dir=root, input_files=[write_text(tmp_path / "new.txt", 6, 3)])
    metadata = load_dataset_info(root).metadata
    assert [row["documents"] for row in metadata["sources"]] == [5, 6]
    assert sum(row["tokens"] for row in metadata["sources"]) == metadata["total_tokens"]
    removed = section(page_of(root), "cleaning")["rows"]
    assert [row["text"].split(" ")[0] for row in removed] == ["2"]  # one in each command
    assert section(page_of(root), "notices")["rows"]
    assert page["badge"]["text"] == "whole"


def test_what_cleaning_removed_has_an_example(dataset: Path) -> None:
    rows = section(page_of(dataset), "cleaning")["rows"]
    assert [row["name"] for row in rows] == ["documents removed: duplicates"]
    assert rows[0]["more"].startswith("such as: ")


def test_lengths_are_of_whole_documents_also_across_shards(dataset: Path) -> None:
    info = load_dataset_info(dataset)
    assert len(info.shards["train"]) > 2
    lengths = count_lengths(info)
    assert lengths.total == info.metadata["total_tokens"]
    assert lengths.count == 51  # 50, of which one is cut where validation begins
    assert lengths.longest > 1000  # a shard is 5000 tokens, the long documents about 1,700


def test_the_document_that_is_cut_ends_where_text_was_added(dataset: Path, tmp_path: Path) -> None:
    root = tmp_path / "grown"
    shutil.copytree(dataset, root)
    before = count_lengths(load_dataset_info(root))
    more = tmp_path / "more.txt"
    # The same letters, since a vocabulary of characters is not extended.
    more.write_text("".join(f"short {n} says long {n} once\n" for n in range(9)), encoding="utf-8")
    append_to_dataset(root, input_files=[more])
    info = load_dataset_info(root)
    lengths = count_lengths(info)
    assert lengths.total == info.metadata["total_tokens"]
    assert lengths.count == before.count + 2  # cut where validation begins, as the first ones were
    assert lengths.longest == before.longest


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200))
def test_length_counts_hold_every_document(lengths: list[int]) -> None:
    counts = LengthCounts()
    counts.add(np.array(lengths))
    assert sum(column["count"] for column in counts.columns()) == len(lengths)
    assert counts.mean == pytest.approx(np.mean(lengths))
    median = float(np.quantile(lengths, 0.5, method="inverted_cdf"))
    assert counts.quantile(0.5) == pytest.approx(median, rel=0.1, abs=0.6)


def test_a_dataset_without_sources_or_ends_says_so(dataset: Path, tmp_path: Path) -> None:
    import json

    root = tmp_path / "old"
    shutil.copytree(dataset, root)
    metadata = json.loads((root / "dataset_metadata.json").read_text())
    for key in ("sources", "cleaning", "notices"):
        del metadata[key]
    (root / "dataset_metadata.json").write_text(json.dumps(metadata))
    for path in root.glob("*/*.docs"):
        path.unlink()
    (root / "metrics.jsonl").unlink()
    page = page_of(root)
    assert section(page, "sources")["rows"] == []
    assert section(page, "lengths")["bins"] == []
    assert section(page, "cleaning")["empty"].startswith("Nothing is known")


def test_a_browser_draws_it(
    dataset: Path, tmp_path: Path, open_page: Callable[[Path | str], tuple[str, list[str]]]
) -> None:
    result = make_report(target=dataset, out=tmp_path / "page.html")
    document, console = open_page(result.path)
    assert console == []
    assert document.count("data-bar=") == 3
    assert document.count("data-bin=") > 2
    assert 'data-series="process tree"' in document


def test_lengths_of_any_size_have_a_place() -> None:
    lengths = LengthCounts()
    assert (lengths.mean, lengths.quantile(0.5), lengths.columns()) == (0.0, 0.0, [])
    huge = 2**62
    lengths.add(np.array([0, 1, huge], dtype=np.int64))
    assert lengths.quantile(1.0) == pytest.approx(2**40, rel=0.1)  # the last bin
    columns = lengths.columns()
    assert columns[0] == {"label": "1", "text": "1 to 1 tokens", "count": 2}
    assert columns[-1]["text"] == f"700,000,000,000 to {huge:,} tokens"
    assert len(columns) == 5 + 11 * 6
    one = LengthCounts()
    one.add(np.array([8]))
    assert one.mean == 8.0


def test_a_dataset_is_read_again_only_when_it_changed(dataset: Path, tmp_path: Path) -> None:
    import os
    import shutil

    root = tmp_path / "copy"
    shutil.copytree(dataset, root)
    reader = DatasetReader(root)
    assert reader.read() is True
    rows = reader._job.num_rows
    assert reader.read() is False
    os.utime(root / "dataset_metadata.json", ns=(1, 1))
    assert reader.read() is True
    assert reader._job.num_rows == rows  # not added up


def test_shares_and_limits_of_tables() -> None:
    rules = {
        "a": {"count": 1, "bytes": 1, "examples": []},
        "b": {"count": 1, "bytes": 5000, "examples": []},
    }
    report = {"bytes_in": 10_000, "documents_in": 1, "lines_in": 1, "rules": rules}
    assert [row["text"].split(" · ")[-1] for row in _cleaning(report)["rows"]] == ["50 %", "0.01 %"]
    none = _cleaning({**report, "bytes_in": 0})
    assert (none["note"], none["empty"][:16]) == ("", "Nothing is known")
    assert none["rows"][1]["text"].endswith("1e+02 %")  # of at least one byte
