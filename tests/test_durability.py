"""What a power cut leaves: files that came to their names whole, by every verb that writes.

A file is flushed before it gets its name, and its folder after; else the name may be there after a
power cut and the bytes not, or neither. Calls are noted in this process, as the system gets them.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lowtide.cli import main

_REPLACE = os.replace
# What tells of other files: these must be there before it is.
LAST = {"dataset_metadata.json", "conversion.json", "export.json"}


@dataclass
class Noted:
    """Files that got their names under a folder, and what was flushed before and after."""

    root: Path
    flushed: set[int] = field(default_factory=set)
    names: set[Path] = field(default_factory=set)
    not_flushed: set[Path] = field(default_factory=set)
    waiting: set[Path] = field(default_factory=set)
    """Names in folders that were not flushed since."""
    told_early: set[Path] = field(default_factory=set)
    """Names that were waiting when a file of metadata told of them."""

    def fsync(self, file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        found = os.fstat(number)
        if stat.S_ISDIR(found.st_mode):
            folder = Path(f"/proc/self/fd/{number}").readlink()
            self.waiting = {path for path in self.waiting if path.parent != folder}
        else:
            self.flushed.add(found.st_ino)

    def replace(self, source: Any, target: Any, **more: Any) -> None:
        path = Path(os.fspath(target)).absolute()
        if path.is_relative_to(self.root) and not Path(source).is_dir():
            self.names.add(path)
            if Path(source).stat().st_ino not in self.flushed:
                self.not_flushed.add(path)
            if path.name in LAST:
                self.told_early |= {other for other in self.waiting if other.parent != path.parent}
            self.waiting.add(path)
        _REPLACE(source, target, **more)

    def left(self, paths: set[Path]) -> set[str]:
        """Those that are no work files, which a power cut may take: they are made again."""
        return {path.name for path in paths if path.is_file()}


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted(tmp_path)
    monkeypatch.setattr(os, "fsync", found.fsync)
    monkeypatch.setattr(os, "fdatasync", found.fsync)
    monkeypatch.setattr(os, "replace", found.replace)
    monkeypatch.setattr(os, "rename", found.replace)
    monkeypatch.chdir(tmp_path)
    return found


def write_text(name: str, seed: int) -> None:
    source = random.Random(seed)
    words = ["".join(source.choices("etaoinshr", k=source.randrange(2, 9))) for _ in range(90)]
    lines = (" ".join(source.choices(words, k=12)) for _ in range(200))
    Path(name).write_text("<|endoftext|>".join(f"{line}\n" for line in lines))


TINY = ("--num-layers 1 --width 16 --num-heads 1 --seq-len 16 --batch-size 2 --max-iters 2 "
        "--eval-iters 1 --sample-tokens 0 --device cpu")  # fmt: skip
COMMANDS = [
    "train-tokenizer --input a.txt --vocab-size 300 --out-dir tok",
    "prepare --input-files a.txt --tokenization tok --tokens-per-shard 2000 --out-dir data",
    "append data --input-files b.txt",
    "pretokenize a.txt --tokenization tok --out-path ids.npy",
    "convert data out.npy --to npy",
    f"train --dataset-dir data --model-name model {TINY}",
    "export --model-name model --out-dir hf",
]
# How many files come to their names, at least: else nothing was looked at.
FEWEST = {"train-tokenizer": 1, "prepare": 15, "append": 14, "pretokenize": 2, "convert": 3,
          "train": 7, "export": 6}  # fmt: skip


def test_every_file_is_flushed_before_its_name_and_its_folder_after(noted: Noted) -> None:
    write_text("a.txt", 1)
    write_text("b.txt", 2)
    for command in COMMANDS:
        noted.names.clear()
        assert main([*command.split(), "--memory", "2GiB"]) == 0, command
        wrong = [noted.left(one) for one in (noted.not_flushed, noted.waiting, noted.told_early)]
        assert wrong == [set(), set(), set()], command
        assert len(noted.left(noted.names)) >= FEWEST[command.split()[0]], noted.names
