"""Build the documentation site: the guides, a page for each verb, the Python reference.

In:      docs/, the help of the verbs, the public names
Out:     build/site (HTML with search), via build/site-pages (Markdown)

    make site
"""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import lowtide
from lowtide.arguments import common_flags
from lowtide.helptext import describe_verb
from lowtide.verbs import VERBS, Verb

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build/site-pages", ROOT / "build/site"

_CONFIG = """site_name: lowtide
docs_dir: site-pages
site_dir: site
use_directory_urls: false
theme:
  name: material
  font: false
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
plugins: [search]
extra_css: [site.css]
validation:
  links: {not_found: info, unrecognized_links: ignore}
"""


# Help and signatures have lines of a hundred characters.
_STYLE = ".md-grid { max-width: 82rem; }\n.md-typeset pre > code { font-size: 0.62rem; }\n"


def verb_page(name: str, verb: Verb) -> str:
    """The page of a verb: its whole help."""
    cls = verb.settings_class()
    text = describe_verb(
        cls,
        program=f"lowtide {name}",
        summary=verb.summary,
        examples=verb.examples,
        also=common_flags(cls),
        whole=True,
    )
    return f"# lowtide {name}\n\n{verb.summary}.\n\n```text\n{text}\n```\n"


def python_page() -> str:
    """The reference: the contents, then every public function and class with its docstring."""
    parts = ["# Reference of Python", f"```text\n{inspect.getdoc(lowtide)}\n```"]
    for name in sorted(lowtide._HOMES, key=str.lower):
        value = getattr(lowtide, name)
        try:
            signature = str(inspect.signature(value))
        except (TypeError, ValueError):
            signature = ""
        doc = inspect.getdoc(value) or ""
        parts.append(f"## {name}\n\n```python\n{name}{signature}\n```\n\n```text\n{doc}\n```")
    return "\n\n".join(parts) + "\n"


def write_pages(folder: Path) -> None:
    """Write all pages as Markdown."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    (folder / "verbs").mkdir()
    for name, verb in VERBS.items():
        (folder / "verbs" / f"{name}.md").write_text(verb_page(name, verb), encoding="utf-8")
    (folder / "site.css").write_text(_STYLE, encoding="utf-8")
    (folder / "reference.md").write_text(python_page(), encoding="utf-8")


def main() -> None:
    """Write the pages and build the site."""
    write_pages(PAGES)
    config = PAGES.parent / "mkdocs.yml"
    config.write_text(_CONFIG, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(config)], check=True)
    print(SITE / "index.html")


if __name__ == "__main__":
    main()
