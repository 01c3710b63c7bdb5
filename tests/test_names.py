"""Names of files that are not UTF-8 go the whole way, as any other name does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide import cli
from lowtide.demo.stages import DemoSettings, plan_stages, write_commands

WORDS = "enough words for a document, and a few more of them: number"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "d\udcff"
    folder.mkdir()
    lines = "".join(f"{WORDS} {number}\n<|endoftext|>\n" for number in range(300))
    (folder / "t\udcfe.txt").write_text(lines)
    monkeypatch.chdir(folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    code = cli.main(list(words))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "unexpected" not in captured.err


def test_text_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, memory = str(folder / "t\udcfe.txt"), ("--memory", "8GiB", "--processes", "2")
    tokenizer, data = str(folder / "tok\udcfd"), str(folder / "data\udcfc")
    run(capsys, "train-tokenizer", "--input", text, "--vocab-size", "300", "--out-dir", tokenizer)
    run(
        capsys,
        *("prepare", "--input-files", text, "--tokenization", tokenizer, "--out-dir", data),
        *memory,
    )
    (folder / "n\udcfb.jsonl").write_text('{"text": "a new document with other words in it"}\n')
    run(capsys, "append", data, "--input-files", str(folder / "n\udcfb.jsonl"), *memory)
    run(capsys, "verify", data)
    run(capsys, "inspect", data)
    run(capsys, "inspect", data, "--test-loading")
    run(capsys, "inspect", tokenizer)
    run(capsys, "pretokenize", text, "--tokenization", tokenizer)
    run(capsys, "convert", data, str(folder / "bin\udcfa"), "--to", "nanogpt")
    run(capsys, "report", data)
    run(capsys, "report", tokenizer, "--sample", text)
    for report in (Path(data) / "report.html", Path(tokenizer) / "report.html"):
        report.read_text(encoding="utf-8")  # the page itself is UTF-8


def test_a_runs_own_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights are opened by a library that takes UTF-8 only."""
    words = ["train", "--input-file", "t\udcfe.txt", "--tokenization", "char"]
    words += ["--seq-len", "16", "--batch-size", "2", "--memory", "8GiB"]
    name = ("--model-name", "m\udcf7")
    run(capsys, *words, *name, "--target-params", "10000", "--max-iters", "2")
    run(capsys, *words, *name, "--max-iters", "3")
    run(capsys, "generate", *name, "--prompt", "few", "--max-new-tokens", "3")
    run(
        capsys,
        "evaluate",
        *name,
        "--dataset-dir",
        str(folder / "checkpoints/m\udcf7/data/tokens.npy"),
    )
    run(capsys, "export", *name, "--out-dir", str(folder / "hf\udcf8"))
    base = ("--init-from-model", str(folder / "hf\udcf8"))
    run(capsys, *words, "--model-name", "n\udcf6", *base, "--max-iters", "1")


def test_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--input-file", "t\udcfe.txt", "--tokenization", "char", "--model-name"]
    words += ["m", "--target-params", "10000", "--seq-len", "16", "--batch-size", "2"]
    run(capsys, *words, "--max-iters", "2", "--memory", "8GiB")
    run(capsys, "report", "m")
    run(capsys, "generate", "--model-name", "m", "--prompt", "few", "--max-new-tokens", "3")
    run(capsys, "export", "--model-name", "m", "--out-dir", "hf\udcf8")


def test_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script of commands has the bytes of the names; one for SLURM has no line ends in them."""
    settings = DemoSettings(text=folder / "t\udcfe.txt", out_dir=folder)
    write_commands(folder / "commands.sh", settings, plan_stages(settings, folder / "t\udcfe.txt"))
    assert b"/d\xff/t\xfe.txt" in (folder / "commands.sh").read_bytes()
    run(capsys, "train", "--dataset-dir", "data\udcfc", "--model-name", "m\udcfb", "--slurm")
    script = (folder / "checkpoints" / "m\udcfb" / "train.slurm").read_bytes()
    assert b"/d\xff/checkpoints/m\xfb/slurm-" in script and b"data\xfc" in script
    assert cli.main(["train", "--dataset-dir", "data", "--model-name", "m\nrm x", "--slurm"]) == 2
    assert "line end" in capsys.readouterr().err
