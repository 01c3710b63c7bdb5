"""The site has a page for every verb and every public name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import lowtide
from lowtide.verbs import VERBS

TOOL = Path(__file__).parents[2] / "tools/site.py"


def test_every_verb_and_name_is_there(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("site_tool", TOOL)
    assert spec is not None and spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.write_pages(tmp_path / "pages")
    for name in VERBS:
        page = (tmp_path / "pages/verbs" / f"{name}.md").read_text()
        assert f"usage: lowtide {name}" in page
    reference = (tmp_path / "pages/reference.md").read_text()
    for name in lowtide._HOMES:
        assert f"\n## {name}\n" in reference
    assert "input_files: str | Path | Sequence[str | Path]" in reference
    assert (tmp_path / "pages/README.md").is_file()
