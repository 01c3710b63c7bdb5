"""What the troubleshooting page quotes is what the code says."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@functools.cache
def strings_of_source() -> list[str]:
    """Every string of the source; of an f-string the parts between its values, joined by NULs."""
    found: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                ]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted_messages() -> list[str]:
    """What stands in quotation marks on the page, outside of code."""
    return sorted(set(re.findall(r'"([^"]+)"', re.sub(r"`[^`]*`", "", PAGE))))


def test_the_page_quotes_messages() -> None:
    assert len(quoted_messages()) >= 8


@pytest.mark.parametrize("message", quoted_messages())
def test_quoted_messages_are_those_of_the_code(message: str) -> None:
    parts = [part.strip(" .,") for part in message.split("…")]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(text) for text in strings_of_source()), message


@pytest.mark.parametrize("verb", ["train-tokenizer", "prepare"])
def test_the_smallest_budgets_are_below_what_the_page_says(verb: str, tmp_path: Path) -> None:
    (limit,) = re.findall(r"below (\d+) MiB on four cores", PAGE)
    (tmp_path / "a.txt").write_text("some text to learn from")
    flag = {"train-tokenizer": "--input", "prepare": "--input-files"}[verb]
    words = [verb, flag, "a.txt", "--out-dir", "out", "--processes", "4", "--memory", "1MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (needed,) = re.findall(r"give at least --memory (\d+)MiB", done.stderr)
    assert int(needed) < int(limit)
