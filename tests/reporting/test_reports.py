"""The target is found and told apart, and a page never replaces anything but a page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError, UsageError
from lowtide.memory import MemoryBudget
from lowtide.reporting import reports
from lowtide.reporting.pages import GENERATOR
from lowtide.reporting.reports import _default_path, open_reader
from lowtide.reporting.reports import report as make_report
from lowtide.reporting.runs import RunReader
from lowtide.reporting.settings import ReportSettings
from lowtide.reporting.tokenizers import TokenizerReader
from lowtide.tokenizer import Tokenizer

from .conftest import metrics_row, step_row, write_rows, write_run


def test_a_run_is_found_by_its_name_and_by_its_folder(tmp_path: Path) -> None:
    root = write_run(tmp_path / "checkpoints" / "mine", [step_row(1)])
    by_name = make_report(target="mine", checkpoints_dir=tmp_path / "checkpoints")
    assert by_name.path == root / "report.html"
    assert (by_name.kind, by_name.num_bytes) == ("run", by_name.path.stat().st_size)
    written = by_name.path.stat().st_mtime_ns
    again = make_report(target=root)
    assert again.path == by_name.path
    assert (by_name.was_there, again.was_there) == (False, True)
    assert by_name.path.stat().st_mtime_ns == written
    earlier = re.sub(r"made [-\d]+ [:\d]+", "made 2001-02-03 04:05", by_name.path.read_text())
    by_name.path.write_text(earlier)  # in another minute the same page is left alone, too
    assert make_report(target=root).was_there and by_name.path.read_text() == earlier


def test_only_pages_are_replaced(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [step_row(1)])
    (tmp_path / "notes.html").write_text("<p>mine")
    with pytest.raises(UsageError, match="not a page of lowtide"):
        make_report(target=root, out=tmp_path / "notes.html")
    assert (tmp_path / "notes.html").read_text() == "<p>mine"


def test_a_job_under_way_has_a_page(tmp_path: Path) -> None:
    row = metrics_row(1, phase="clean", done=5, total=10, unit="B")
    write_rows(tmp_path / "metrics.jsonl", [{**row, "job": "prepare"}])
    reader = open_reader(ReportSettings(target=str(tmp_path)))
    reader.read()
    page = reader.page()
    assert page["kind"] == "prepare"
    assert page["tiles"][1] == {"label": "clean", "value": "5 B", "note": "of 10 B", "tone": ""}


def test_a_pretokenized_file_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("low tide " * 100)
    pretokenize_file(file=tmp_path / "a.txt", tokenization="char")
    result = make_report(target=tmp_path / "a.npy", out=tmp_path / "page.html")
    assert result.kind == "pretokenize"


def test_a_sample_is_for_tokenizers(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [step_row(1)])
    with pytest.raises(UsageError, match=r"--sample a.txt b.txt is for a tokenizer, and this is"):
        make_report(target=root, sample=("a.txt", "b.txt"))


@pytest.mark.parametrize("name", ["none", "empty"])
def test_what_has_no_page_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        make_report(target=tmp_path / name)
    with pytest.raises(UsageError, match="of this machine") as caught:
        make_report(target="s3://bucket/data")
    assert caught.value.next_step == "lowtide inspect s3://bucket/data reads a dataset there"


@pytest.mark.parametrize(
    "options", [{"port": 70000}, {"interval": 0.0}, {"watch": True, "out": "a.html"}]
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make_report(target="x", **options)


def test_pages_are_made_without_torch(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [step_row(1)])
    program = (
        "import sys; from lowtide.cli import main; "
        f"assert main(['report', {str(root)!r}]) == 0; assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "report.html: run," in done.stdout


def test_what_is_looked_at_is_told_by_its_files(tmp_path: Path) -> None:
    for name, make in (
        ("settings", lambda folder: (folder / "settings.json").write_text("{}")),
        ("steps", lambda folder: (folder / "steps").mkdir()),
    ):
        folder = tmp_path / name
        folder.mkdir()
        make(folder)
        assert isinstance(open_reader(ReportSettings(target=str(folder))), RunReader)
    tokenizer = tmp_path / "tokenizer"
    Tokenizer.from_characters("ab").save(tokenizer)
    reader = open_reader(
        ReportSettings(target=str(tokenizer), sample=("a.txt",), text_field="body")
    )
    assert isinstance(reader, TokenizerReader)
    assert _default_path(ReportSettings(target=str(tokenizer))) == tokenizer / "report.html"
    alone = ReportSettings(target=str(tokenizer / "tokenizer.json"))
    assert _default_path(alone) == Path("tokenizer-report.html")


def test_folders_of_a_page_are_made_and_marks_are_looked_for_at_its_head(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    page = tmp_path / "a" / "b" / "page.html"
    made = make_report(target=str(tmp_path / "run"), out=page)
    assert made.num_bytes == page.stat().st_size
    mark = GENERATOR.encode()
    page.write_bytes(b" " * (1024 - len(mark)) + mark)
    make_report(target=str(tmp_path / "run"), out=page)
    page.write_bytes(b" " * (1025 - len(mark)) + mark)
    with pytest.raises(UsageError, match="not a page of lowtide"):
        make_report(target=str(tmp_path / "run"), out=page)


def test_a_budget_without_room_for_a_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", [])
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(MemoryBudget, "require", lambda self, parts: asked.append(parts))
    make_report(target=str(tmp_path / "run"), out=tmp_path / "page.html")
    assert asked == [{"curves and page": 16 << 20}]


def test_what_a_page_takes_is_required_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(MemoryBudget, "require", lambda self, shares: asked.append(shares))
    needs = SimpleNamespace(table_bytes=5)
    monkeypatch.setattr(reports, "tokenizer_needs", lambda path: needs)
    monkeypatch.setattr(reports, "_make_report", lambda settings: None)
    runs = [str(write_run(tmp_path / name, [step_row(1)])) for name in ("a", "b", "c")]
    Tokenizer.from_characters("ab").save(tmp_path / "tok")
    make_report(target=(runs[0],), progress=False)
    make_report(target=tuple(runs), progress=False)
    make_report(target=(str(tmp_path / "tok"),), progress=False)
    page, run = 16 << 20, 2 << 20
    assert asked == [
        {"curves and page": page},
        {"curves and page": page + 3 * run},
        {"curves and page": page, "tokenizer and sample": (40 << 20) + 5},
    ]


def test_a_page_in_a_notebook_is_in_a_frame_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<p class="a">é</p>', encoding="utf-8")
    shown = reports.ReportResult(tmp_path / "page.html", "run", 5)._repr_html_()
    assert shown == (
        '<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:640px;border:1px '
        'solid #8884" srcdoc="&lt;p class=&quot;a&quot;&gt;é&lt;/p&gt;"></iframe>'
    )
