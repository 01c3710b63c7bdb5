"""Streams that go on when nobody reads them."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import lowtide
from lowtide import answers, standardstreams
from lowtide.answers import Answer, print_answer
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.standardstreams import is_stdout_read, outlive_readers
from lowtide.tokenizer import Tokenizer


@contextlib.contextmanager
def streams() -> Generator[tuple[int, int]]:
    """stdout and stderr of pipes that somebody reads: the ends to read from."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as files:
        patch.setattr(standardstreams, "_lost", {"stdout": False})
        ends: list[int] = []
        for name in ("stdout", "stderr"):
            reading, writing = os.pipe()
            ends.append(reading)
            patch.setattr(sys, name, files.enter_context(os.fdopen(writing, "w", encoding="ascii")))
        outlive_readers()
        yield ends[0], ends[1]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for reading in ends:
            with contextlib.suppress(OSError):  # the test has closed it
                os.close(reading)


def test_what_is_read_comes_as_it_was_written() -> None:
    with streams() as ends:
        print("a line that ascii cannot show: \u00e9")
        sys.stdout.flush()
        assert os.read(ends[0], 100) == b"a line that ascii cannot show: \\xe9\n"
        print("progress", file=sys.stderr)  # seen at once
        assert os.read(ends[1], 100) == b"progress\n"
        assert is_stdout_read()


def test_what_nobody_reads_is_dropped() -> None:
    with streams() as ends:
        os.close(ends[1])
        print("progress", file=sys.stderr, flush=True)
        assert is_stdout_read()  # that was the other one
        os.close(ends[0])
        for _ in range(3):
            print("x" * 100_000, flush=True)
        assert not is_stdout_read()


def test_a_text_that_nobody_reads_is_not_made_to_its_end() -> None:
    with streams() as ends:
        made: list[int] = []

        def parts() -> Generator[str]:
            for number in range(100):
                made.append(number)
                yield "word "

        os.close(ends[0])
        print_answer(Answer(parts(), field="text", end=""))
        assert made == [0]


def test_work_is_done_though_nobody_reads_of_it() -> None:
    with streams() as ends:
        made: list[int] = []

        def parts() -> Generator[str]:
            for number in range(100):
                made.append(number)
                yield "x" * 10_000

        os.close(ends[0])
        print_answer(Answer(parts(), field="files"))
        assert len(made) == 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_result_that_a_full_disk_does_not_take_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Path("/dev/full").open("w") as full, Path("/dev/full").open("w") as log:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", log)
        outlive_readers()
        print("progress", file=sys.stderr, flush=True)
        with pytest.raises(OSError, match="No space left"):
            print("result", flush=True)
        with pytest.raises(OSError, match="No space left"):
            sys.stdout.close()  # what it holds is lost, and said to be


def test_streams_that_are_no_files_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, closed = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", closed)
    outlive_readers()
    assert sys.stdout is stream and sys.stderr is closed
    assert not answers.is_quiet()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_without_streams(tmp_path: Path, closed: str) -> None:
    (tmp_path / "text.txt").write_text("A line of the story.\n" * 9)
    script = f'"$@" {closed}'
    words = ["prepare", "--input-files", "text.txt", "--tokenization", "char", "--out-dir", "data"]
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "lowtide", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "dataset_metadata.json").exists()
    assert ("Total tokens" in done.stdout) == (closed == "2>&-")
    wrong = [*command, "--val-fraction", "2"]
    assert subprocess.run(wrong, cwd=tmp_path, capture_output=True, check=False).returncode == 2


class _Log:
    """What some services put in the place of stdout."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stream", [None, _Log()])
def test_functions_work_where_streams_are_none_or_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: object
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    (tmp_path / "text.txt").write_text("A line of the story.\n" * 9)
    lowtide.prepare_dataset(
        input_files=tmp_path / "text.txt", tokenization="char", out_dir=tmp_path / "data"
    )
    assert "char tokenizer" in lowtide.inspect(tmp_path / "data" / "tokenizer.json").text
    config = GPTConfig(vocab_size=300, context_length=16, num_layers=1, width=16, num_heads=2)
    write_json(tmp_path / "config.json", config.to_huggingface())
    weights = portable_tensors(GPT(config).state_dict(), config)
    save_weights(tmp_path / "model.safetensors", weights)
    Tokenizer.from_characters("some words").save(tmp_path)
    text = "".join(lowtide.generate(model_name=str(tmp_path), prompt="some", max_new_tokens=2))
    assert text.startswith("some")
