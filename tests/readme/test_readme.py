"""What the README shows works as written.

Blocks marked `sh` and `python` are run in the order they stand, in one folder that holds a file
notes.txt; blocks marked `console` only set up, and their make targets must exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("readme")
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((library / f"{name}.py").read_text() for name in ("argparse", "typing", "ast"))
    (place / "notes.txt").write_text(text, encoding="utf-8")
    return place


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def test_commands_and_snippets_run_as_written(folder: Path) -> None:
    shell, python = blocks_of("sh"), blocks_of("python")
    assert shell
    assert python
    for block in shell:
        run(["sh", "-e", "-c", block], folder)
    for block in python:
        run([sys.executable, "-W", "error", "-c", block], folder)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", "\n".join(blocks_of("console")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", README):
        assert (ROOT / link).exists(), link


def test_the_tree_names_what_is_there() -> None:
    (tree,) = re.findall(r"^```\n(src/lowtide/.*?)^```", README, re.MULTILINE | re.DOTALL)
    folders: list[str] = []
    for line in tree.splitlines():
        indent = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders = [*folders[:indent], name]
        assert (ROOT / "".join(folders)).exists(), "".join(folders)


def test_it_stays_short() -> None:
    assert len(README.splitlines()) < 200
