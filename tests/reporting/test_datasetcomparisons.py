"""Several datasets on one page: sizes, lengths, sources, languages, what was removed of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide.errors import DataError, UsageError
from lowtide.files import read_json, write_json
from lowtide.reporting.datasetcomparisons import MOST_DATASETS, DatasetComparisonReader
from lowtide.reporting.reports import open_reader
from lowtide.reporting.settings import ReportSettings


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of short lines and one of long, of a file that both have and one of its own."""
    folder = tmp_path_factory.mktemp("datasets")
    shared = folder / "shared.txt"
    shared.write_text("<|endoftext|>".join(f"a document of both, number {i}" for i in range(40)))
    made: list[Path] = []
    for name, words in (("short", 4), ("long", 300)):
        text = folder / f"{name}.txt"
        rows = [" ".join(f"{name}{i}{k}" for k in range(words)) for i in range(30)]
        text.write_text("<|endoftext|>".join([*rows, rows[0]]))
        lowtide.prepare_dataset(
            input_files=(str(shared), str(text)),
            tokenization="char",
            out_dir=folder / name,
            min_document_words=words // 100,
            memory="2GiB",
            progress=False,
        )
        made.append(folder / name)
    path = made[0] / "dataset_metadata.json"
    metadata = read_json(path)
    metadata["cleaning"]["languages"] = {
        "en": {"count": 3, "bytes": 9},
        "de": {"count": 1, "bytes": 2},
    }
    write_json(path, metadata)
    return made


def page_of(roots: list[Path]) -> dict[str, Any]:
    reader = DatasetComparisonReader(roots)
    assert reader.read() and not reader.read()
    return reader.page()


def section(page: dict[str, Any], name: str) -> dict[str, Any]:
    return next(part for part in page["sections"] if part["id"] == name)


def test_what_differs_stands_side_by_side(datasets: list[Path]) -> None:
    page = page_of(datasets)
    assert (page["title"], page["subtitle"]) == ("2 datasets", "short · long")
    table = section(page, "datasets")
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert row["documents"] == "70" and row["input files"] == "2"
    files = {Path(file).name: cells for file, *cells in section(page, "sources")["rows"]}
    assert set(files) == {"shared.txt", "short.txt", "long.txt"}
    assert all(files["shared.txt"]) and files["long.txt"][0] == "" and files["short.txt"][1] == ""
    (rule, *removed) = section(page, "removed")["rows"][0]
    assert rule == "documents removed: duplicates" and all("· 1 ·" in cell for cell in removed)
    assert {row[1] for row in section(page, "examples")["rows"]} == {"short", "long"}
    assert section(page, "languages")["rows"] == [["en", "75.0%", ""], ["de", "25.0%", ""]]
    assert section(page, "differences")["rows"] == [["min_document_words", "0", "3"]]


def test_lengths_are_shares_of_each(datasets: list[Path]) -> None:
    bins = section(page_of(datasets), "lengths")["bins"]
    for k in range(2):
        assert sum(one["counts"][k] for one in bins) == pytest.approx(100, abs=0.1)
    assert bins[0]["counts"][1] == 0 or bins[-1]["counts"][0] == 0


def test_two_of_one_name_are_told_apart(datasets: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "short"
    other.symlink_to(datasets[1])
    page = page_of([datasets[0], other])
    assert page["subtitle"] in (f"short · {datasets[1].name}", f"{datasets[0]} · {other}")


def test_only_things_of_one_kind_are_compared(datasets: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="all of them datasets, and this is not a run"):
        open_reader(ReportSettings(target=(str(datasets[0]), str(tmp_path))))
    with pytest.raises(UsageError, match="expected 8 at most"):
        DatasetComparisonReader([datasets[0]] * (MOST_DATASETS + 1))


def test_its_page_is_not_that_of_a_comparison_of_runs(
    datasets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are made in the folder one is in, and neither may replace the other."""
    monkeypatch.chdir(tmp_path)
    made = lowtide.report([str(path) for path in datasets], progress=False)
    assert made.path == Path("datasets.html") and made.path.is_file()


SAVING = """<script>
const saved = [];
saveLink = (name, address) => saved.push(name + " " + address.slice(0, 80));
for (const key of ["csv", "png"]) document.querySelector(`#lengths [data-key=${key}]`).click();
setTimeout(() => { document.title = saved.join("|"); }, 500);
</script></body>"""


def test_a_browser_draws_it(
    datasets: list[Path],
    tmp_path: Path,
    open_page: Callable[[Path | str], tuple[str, list[str]]],
) -> None:
    result = lowtide.report(target=tuple(map(str, datasets)), out=tmp_path / "page.html")
    document, console = open_page(result.path)
    assert (result.kind, console) == ("comparison", [])
    bins = document.count("data-bin=")
    assert bins > 2 and document.count('fill="var(--c1)"') > bins
    saving = tmp_path / "saving.html"
    saving.write_text(result.path.read_text().replace("</body>", SAVING), encoding="utf-8")
    document, console = open_page(saving)
    csv, png = document.partition("<title>")[2].partition("</title>")[0].split("|")
    assert console == [] and png.startswith("lengths.png data:image/png;base64,iVBOR")
    assert csv.startswith("lengths.csv data:text/csv;charset=utf-8,tokens%2Cshort%2Clong%0A10%2C")
