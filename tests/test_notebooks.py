"""Results as notebooks show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lowtide
from lowtide import notebooks
from lowtide.notebooks import ResultDict, ResultList, shown_in_notebooks, table_of


@shown_in_notebooks()
@dataclass(frozen=True)
class Result:
    path: Path = Path("<a>")
    peak_bytes: int = 3 << 20
    loss: float = 1.23456
    was_there: bool = False
    none: int | None = None
    notes: list[str] = field(default_factory=lambda: ["x"] * 20)
    more: dict[str, int] = field(default_factory=lambda: {"tokens": 1000})


def test_values_are_written_for_people() -> None:
    text = Result()._repr_html_()
    for part in ("<code>&lt;a&gt;</code>", "3.0 MiB", ">1.235<", ">no<", "… 8 more", ">1,000<"):
        assert part in text
    assert "none" not in text


def test_many_results() -> None:
    assert ResultList([Result(), Result()])._repr_html_().count("3.0 MiB") == 2
    assert "books" in ResultDict(books=Result())._repr_html_()


def test_all_results_have_a_form() -> None:
    names = [name for name in lowtide._HOMES if name.endswith("Result")]
    for name in [*names, "TrainedTokenizer", "Plan", "Inspection", "Pair", "DatasetInfo"]:
        assert hasattr(getattr(lowtide, name), "_repr_html_"), name


def test_those_of_real_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("enough words to learn from, <b> one after the other\n" * 3)
    made = lowtide.prepare_dataset(
        input_files=tmp_path / "a.txt", out_dir=tmp_path / "out", tokenization="char"
    )
    assert "total_tokens" in made._repr_html_() and "budget_bytes" in made._repr_html_()
    assert "&lt;b&gt;" in lowtide.inspect(made.info.root)._repr_html_()
    assert "<pre>" in lowtide.make_plan(ram="8GiB", tokens="1M", size="1M")._repr_html_()
    page = lowtide.report(made.info.root, progress=False)
    assert page._repr_html_().startswith("<iframe sandbox=")
    assert "&lt;!doctype html" in page._repr_html_().lower()


def test_a_table_is_written_cell_by_cell() -> None:
    head = '<tr><th style="text-align:left">'
    shown = table_of({"loss": 1.5, "left_out": None, "none": (), "empty": {}, "a<b": "x"})
    assert shown.startswith(f"<table>{head}loss</th><td>1.5</td></tr>{head}a&lt;b</th><td>")
    assert shown.endswith("</td></tr></table>") and shown.count("<tr>") == 2
    rows = {f"name{number}": number + 1 for number in range(notebooks._MOST_ROWS)}
    assert "more</td>" not in table_of(rows) and table_of(rows).count("<tr>") == len(rows)
    longer = table_of({**rows, "one": 1, "two": 2})
    assert longer.endswith("<tr><td colspan=2>… 2 more</td></tr></table>")
    assert longer.count("<tr>") == len(rows) + 1


def test_tables_within_tables_end_at_a_depth() -> None:
    """Two within each other; what is deeper is told as text."""
    value: dict[str, Any] = {"leaf": 1}
    for name in ("c", "b", "a"):
        value = {name: value}
    shown = table_of(value)
    assert shown.count("<table") == 3
    assert "{&#x27;leaf&#x27;: 1}" in shown
    rows = table_of({"list": [{"x": {"y": {"z": 1}}}]})
    assert rows.count("<table") == 2 and "{&#x27;y&#x27;: {&#x27;z&#x27;: 1}}" in rows
