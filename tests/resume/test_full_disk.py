"""A disk that runs full under way: a clear error, nothing half made, and the same command goes on.

Each command is given on disks of growing size, from one that is full already to one on which all of
it fits; wherever it fails, it is given again with more room, and must end with the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.filenames import CHECKSUMS_NAME, METRICS_NAME, SETTINGS_NAME

_WORDS = "the tide is low and the water leaves the sand, says document number"
_TRAIN = (
    "train --dataset-dir data --model-name run --target-params 20000 --seq-len 16 --batch-size 2 "
    "--max-iters 4 --save-interval 2 --eval-interval 2 --eval-iters 1 --sample-tokens 0 "
    "--memory 4GiB --device cpu"
)
_CASES = {
    "train": f"{_TRAIN} --checkpoints-dir DISK/runs",
    "slurm": f"{_TRAIN} --checkpoints-dir DISK/runs --slurm",
    "export": "export --model-name run --out-dir DISK/hf",
    "gguf": "export --model-name run --out-dir DISK/gguf --to gguf",
    "classifier": "train-classifier --good good.txt --other a.jsonl --out-dir DISK/quality "
    "--buckets 500 --epochs 1 --processes 1",
    "near": "prepare --input-files a.jsonl good.txt --tokenization tok --out-dir DISK/near "
    "--near-dedup 0.8 --processes 1",
    "report": "report DISK/run",
}
# A log, what says when and where and how long, and the page of a moment.
_NEVER_THE_SAME = (METRICS_NAME, SETTINGS_NAME, CHECKSUMS_NAME, "state.json", ".html", ".slurm")
_ROOM_KIB = 100_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    rows = (json.dumps({"text": f"{_WORDS} {number}"}) + "\n" for number in range(200))
    (folder / "a.jsonl").write_text("".join(rows))
    good = (f"good words of item {number} mean {number * 7} waves" for number in range(40))
    (folder / "good.txt").write_text("<|endoftext|>".join(good))
    with contextlib.chdir(folder):
        for line in (
            "train-tokenizer --input a.jsonl --vocab-size 280 --out-dir tok --processes 1",
            "prepare --input-files a.jsonl --tokenization tok --out-dir data --processes 1",
            _TRAIN,
        ):
            assert cli.main(line.split()) == 0
    return folder


class Disk:
    """A file system in memory, of a size that may change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, kib: int) -> None:
        again = "remount," if os.path.ismount(self.path) else ""
        options = f"{again}size={kib}k"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("this sandbox forbids mounting")

    def used_kib(self) -> int:
        status = os.statvfs(self.path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize >> 10

    def close(self) -> None:
        if os.path.ismount(self.path):
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


def fill(disk: Disk, name: str, kib: int) -> None:
    """A new disk with what the command reads on it, and `kib` of room; 0 is none at all."""
    disk.close()
    disk.resize(_ROOM_KIB)
    if name == "report":
        shutil.copytree("checkpoints/run", disk.path / "run")
    disk.resize(disk.used_kib() + max(kib, 4))
    if not kib:
        with contextlib.suppress(OSError), (disk.path / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 1024):
                pass


def files_on(disk: Disk) -> dict[str, bytes]:
    (disk.path / "filler").unlink(missing_ok=True)
    return {
        str(path.relative_to(disk.path)): path.read_bytes()
        for path in sorted(disk.path.rglob("*"))
        if path.is_file() and not path.name.endswith(_NEVER_THE_SAME)
    }


@pytest.mark.parametrize("name", _CASES)
def test_a_full_disk_is_said_and_the_command_goes_on(
    name: str, world: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    words = _CASES[name].replace("DISK", str(disk.path)).split()
    with contextlib.chdir(world):
        fill(disk, name, _ROOM_KIB)
        begun = disk.used_kib()
        assert cli.main(words) == 0
        right, taken = files_on(disk), disk.used_kib() - begun
        num_failed = 0
        for kib in (0, taken // 3, taken * 2 // 3):
            fill(disk, name, max(kib, 0))
            capsys.readouterr()
            code, said = cli.main(words), capsys.readouterr().err
            if code:
                num_failed += 1
                assert "disk" in said and "next: " in said, said
                assert "unexpected" not in said and "Traceback" not in said, said
                assert not list(disk.path.glob("*/.*.partial"))  # work folders may hold some
            disk.resize(_ROOM_KIB)
            assert cli.main(words) == 0, capsys.readouterr().err
            assert files_on(disk) == right
        assert num_failed
