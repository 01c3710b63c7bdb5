"""Two of the same command: the second waits for the lock, and finds the work of the first done."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import files
from lowtide.cli import main
from lowtide.tokenizer import training

COMMANDS = {
    "train-tokenizer": "--input {text} --out-dir {out} --vocab-size 300",
    "prepare": "--input-files {text} --out-dir {out} --tokenization char",
    "pretokenize": "{text} --out-path {out}.npy --tokenization char",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"line {number} of the tide\n\n" for number in range(300)))
    return path


@pytest.mark.parametrize("verb", COMMANDS)
def test_what_another_command_ended_meanwhile_is_left_as_it_is(
    text: Path,
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = tmp_path / "done"
    words = [verb, *COMMANDS[verb].format(text=text, out=tmp_path / "out").split()]
    assert main(words) == 0
    first = sorted(tmp_path.iterdir())
    done.mkdir()
    for path in first:
        path.rename(done / path.name)
    plain = files.hold_lock

    @contextlib.contextmanager
    def late(*given: Any, **more: Any) -> Iterator[None]:
        with plain(*given, **more):
            for path in done.iterdir():
                if path.is_dir():
                    shutil.copytree(path, tmp_path / path.name, dirs_exist_ok=True)
                else:
                    shutil.copy2(path, tmp_path / path.name)
            yield

    for module in (files, training):
        monkeypatch.setattr(module, "hold_lock", late)
    capsys.readouterr()
    assert main(words) == 0
    assert "already" in capsys.readouterr().out
    for path in done.rglob("*"):
        again = tmp_path / path.relative_to(done)
        assert again.stat().st_mtime_ns == path.stat().st_mtime_ns or path.is_dir()
