"""Write the repository's URL into the metadata of the package index: README links, project URLs.

In:      the repository's URL and a tag, from the workflow that builds wheels
Out:     README.md and pyproject.toml of this checkout, changed; not to be committed

    python tools/publish_links.py "$SERVER/$REPOSITORY" v0.1.0

A package index has no other files, so a relative link to docs/train.md is broken there. The sources
contain no URL: only the publishing workflow knows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def absolute_links(text: str, repository: str, ref: str) -> str:
    """The text with the full URL of every link and picture of a file in the repository."""

    def replace(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['name']}]({repository}/{kind}/{ref}/{found['path']})"

    pattern = r"(?P<picture>!?)\[(?P<name>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)]+)\)"
    return re.sub(pattern, replace, text)


def with_urls(pyproject: str, repository: str, ref: str) -> str:
    """pyproject.toml with a table of project URLs."""
    table = (
        "[project.urls]\n"
        f'Repository = "{repository}"\n'
        f'Documentation = "{repository}/blob/{ref}/docs/README.md"\n'
        f'Changelog = "{repository}/blob/{ref}/CHANGELOG.md"\n'
        f'Issues = "{repository}/issues"\n\n'
    )
    before, mark, after = pyproject.partition("[project.scripts]\n")
    if not mark or "\n[project.urls]\n" in pyproject:
        raise SystemExit("pyproject.toml has its URLs already, or no [project.scripts]")
    return before + table + mark + after


def main() -> None:
    """Change both files in place."""
    repository, ref = sys.argv[1:]
    for name, change in (("README.md", absolute_links), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8"), repository, ref), encoding="utf-8")


if __name__ == "__main__":
    main()
