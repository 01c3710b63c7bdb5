"""`lowtide inspect` on tokenizers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.tokenizer import Tokenizer, inspection
from lowtide.tokenizer.inspection import (
    inspect_tokenizer,
    is_tokenizer,
    kind_of_token,
    measure_sample,
    show_tokens,
)


@pytest.fixture
def folder(tmp_path: Path, small_tokenizer: Tokenizer) -> Path:
    small_tokenizer.save(tmp_path / "tok")
    return tmp_path / "tok"


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (b"the", "words and parts of words"),
        (b" the", "words with leading whitespace"),
        ("\u0301é".encode(), "words and parts of words"),
        (b" 12", "numbers"),
        (b" \n", "whitespace"),
        (b"...", "symbols"),
        (b"'s", "mixed"),
        (b"\xe4\xb8", "partial characters"),
        (b"\x00", "symbols"),
    ],
)
def test_kinds_of_tokens(token: bytes, kind: str) -> None:
    assert kind_of_token(token) == kind


def test_every_ordinary_token_has_a_kind(folder: Path, small_tokenizer: Tokenizer) -> None:
    text = inspect_tokenizer(Tokenizer.load(folder), source=folder)
    section = text.split("what the tokens are:\n")[1].split("bytes long")[0].splitlines()[:-1]
    total = sum(int(line.split()[-3].replace(",", "")) for line in section)
    assert total == len(small_tokenizer.vocabulary) - len(small_tokenizer.special_tokens)
    assert f"bpe tokenizer with {small_tokenizer.vocab_size:,} tokens" in text
    assert small_tokenizer.fingerprint in text
    assert "<|endoftext|> = 0" in text


def test_a_sample_is_measured(folder: Path, tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    sample = tmp_path / "sample.txt"
    sample.write_text("the cat's hat\n" * 200_000)
    measure = measure_sample(small_tokenizer, sample)
    ids = small_tokenizer.encode(sample.read_bytes())
    assert measure.num_bytes == sample.stat().st_size
    assert measure.num_tokens == len(ids)
    assert measure.num_distinct == len(set(ids.tolist()))
    text = inspect_tokenizer(Tokenizer.load(folder), source=folder, sample=sample)
    assert f"{len(ids):,} tokens, {sample.stat().st_size / len(ids):.3f} bytes per token" in text


def test_characters_that_are_unknown_are_counted(tmp_path: Path) -> None:
    sample = tmp_path / "sample.txt"
    sample.write_text("abcx" * 10)
    characters = Tokenizer.from_characters("abc")
    assert measure_sample(characters, sample).num_unknown == 10
    characters.save(tmp_path)
    assert "10 characters are unknown" in inspect_tokenizer(
        Tokenizer.load(tmp_path), source=tmp_path, sample=sample
    )


def test_tokens_are_told_apart() -> None:
    tokens = [b"The", b" cat", b"\n\t", b"\xe6", b"\x07"]
    assert show_tokens(tokens, color=False) == r"The| cat|\n\t|\xe6|\x07"
    colored = show_tokens(tokens, color=True)
    assert colored.count("\x1b[38;5;16;48;5;") == 5
    assert colored.endswith("\x1b[0m")


def test_what_is_a_tokenizer(tmp_path: Path, folder: Path) -> None:
    assert is_tokenizer(folder)
    assert is_tokenizer(folder / "tokenizer.json")
    assert is_tokenizer(Path("gpt2"))
    assert not is_tokenizer(tmp_path)
    assert not is_tokenizer(tmp_path / "gone")
    (folder / "dataset_metadata.json").write_text("{}")
    assert not is_tokenizer(folder)


def test_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["inspect", str(folder), "--text", "the cat<|endoftext|>"]) == 0
    plain = capsys.readouterr().out
    assert "the longest:" in plain
    assert plain.splitlines()[-1].endswith("|<|endoftext|>")
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["inspect", str(folder)]) == 0
    assert "\x1b[" in capsys.readouterr().out


def test_a_sample_that_is_not_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folder), "--sample", str(tmp_path / "gone.txt")]) == 1
    error = capsys.readouterr().err
    assert "no such file" in error
    assert str(tmp_path / "gone.txt") in error


def test_a_pipe_as_a_sample_is_not_waited_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["inspect", str(folder), "--sample", str(tmp_path / "pipe")]) == 1
    assert "this is a pipe or a device" in capsys.readouterr().err


def test_a_tokenizer_is_described_line_by_line(folder: Path, small_tokenizer: Tokenizer) -> None:
    merges = small_tokenizer.data.merges
    assert merges is not None
    specials = sorted(small_tokenizer.special_tokens.items(), key=lambda item: item[1])
    shown = ", ".join(f"{text} = {id}" for text, id in specials) or "none"
    assert inspect_tokenizer(small_tokenizer, source=folder, text="low").splitlines()[:5] == [
        f"{folder}: bpe tokenizer with {small_tokenizer.vocab_size:,} tokens",
        f"  pattern      {small_tokenizer.data.pattern}",
        f"  merges       {len(merges):,}",
        f"  special      {shown}",
        f"  fingerprint  {small_tokenizer.fingerprint}",
    ]


@pytest.mark.parametrize(("count", "end"), [(8, "<6> = 7"), (9, "<6> = 7 and 1 more")])
def test_the_first_eight_special_tokens_are_shown(count: int, end: str) -> None:
    names = ["<unk>", *(f"<{number}>" for number in range(count - 1))]
    tokenizer = Tokenizer.from_characters("a", special_tokens=names)
    lines = inspect_tokenizer(tokenizer, source="tok").splitlines()
    assert next(line for line in lines if "special" in line).endswith(end)


@pytest.mark.parametrize(("length", "whole"), [(67, True), (68, True), (69, False)])
def test_long_tokens_are_shortened_in_the_middle(length: int, whole: bool) -> None:
    token = bytes(97 + number % 26 for number in range(length))
    shown = inspection._shorten(token)
    assert shown == (repr(token.decode()) if whole else f"'{token[:49].decode()} ... {shown[-15:]}")
    assert whole or shown.endswith(f"{token[-14:].decode()}'")


def test_only_characters_can_be_unknown(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("low tide é")
    assert measure_sample(small_tokenizer, tmp_path / "a.txt").num_unknown == 0
    characters = Tokenizer.from_characters("low tide")
    assert measure_sample(characters, tmp_path / "a.txt").num_unknown == 1


class Windows:
    """A tokenizer that notes the texts it is given, as one stream or one by one."""

    vocab_size, kind = 300, "bpe"
    special_tokens: ClassVar[dict[str, int]] = {}

    def __init__(self, package: Any) -> None:
        self.package = package
        self.streams: list[list[int]] = []

    def last_cut(self, text: bytes) -> int:
        return text.rfind(b" ") if b" " in text else 0

    def iter_encoded(self, stream: Any) -> Any:
        self.streams.append([])
        for text in stream:
            self.streams[-1].append(len(text))
            yield np.frombuffer(text, np.uint8).astype(np.int32)


@pytest.mark.parametrize("package", [None, "package"])
def test_a_sample_is_given_in_windows(tmp_path: Path, package: Any) -> None:
    """Up to the last cut of each megabyte; of a package's as one stream."""
    mib = 1 << 20
    data = bytearray(b"x" * (3 * mib + 10))
    data[mib - 100] = data[2 * mib + 50] = 32
    (tmp_path / "a.txt").write_bytes(data)
    tokenizer: Any = Windows(package)
    found = measure_sample(tokenizer, tmp_path / "a.txt")
    sizes = [size for stream in tokenizer.streams for size in stream]
    assert sizes[0] == mib - 100 and sum(sizes) == len(data)
    assert len(tokenizer.streams) == (1 if package else len(sizes))
    assert found == inspection.SampleMeasure(len(data), len(data), 2, 0)
    assert found.bytes_per_token == 1.0
    assert inspection.SampleMeasure(7, 0, 0, 0).bytes_per_token == 7.0


def test_no_more_than_64_mebibytes_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        reads = 0

        def __enter__(self) -> Endless:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            assert size == 1 << 20
            self.reads += 1
            return b" " * size

    file = Endless()
    monkeypatch.setattr(inspection, "open_file", lambda path: file)
    monkeypatch.setattr(inspection, "_count_ids", lambda ids, size: np.zeros(size, np.int64))
    tokenizer: Any = Windows(None)
    tokenizer.iter_encoded = lambda stream: list(stream)[:0]
    found = measure_sample(tokenizer, tmp_path / "a.txt")
    assert (file.reads, found.num_bytes) == (64, 64 << 20)


def test_a_sample_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Any = SimpleNamespace(vocab_size=400)
    for unknown, last in ((0, []), (1234, ["  1,234 characters are unknown"])):
        measure = inspection.SampleMeasure(3 << 20, 1_000_000, 100, unknown)
        monkeypatch.setattr(inspection, "measure_sample", lambda *_, one=measure: one)
        assert inspection._describe_sample(tokenizer, Path("a.txt")) == [
            "on 3.0 MiB of a.txt:",
            "  1,000,000 tokens, 3.146 bytes per token",
            "  100 different ones, 25.0 % of the vocabulary",
            *last,
        ]


def test_the_first_characters_of_a_sample_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\u00e9" * 500)
    assert inspection._first_lines(tmp_path / "a.txt") == "\u00e9" * 240


@pytest.mark.parametrize(
    ("reason", "by"),
    [
        ("normalizer NFKC", "the package tokenizers (normalizer NFKC)"),
        ("", "native code (pieces of text)"),
    ],
)
def test_who_runs_a_tokenizer_is_said(reason: str, by: str) -> None:
    tokenizer: Any = SimpleNamespace(
        kind="package", vocab_size=1234, data=SimpleNamespace(reason=reason),
        special_tokens={"<b>": 2, "<a>": 1}, fingerprint="print",
    )  # fmt: skip
    assert inspection._describe(tokenizer, "here") == [
        "here: package tokenizer with 1,234 tokens",
        f"  run by       {by}",
        "  special      <a> = 1, <b> = 2",
        "  fingerprint  print",
    ]


def test_the_longest_tokens_and_the_kinds_of_all() -> None:
    merges = [(b"a", b"b"), (b"ab", b"ab"), (b" ", b"a"), (b"1", b"2"), (b".", b".")]
    tokenizer = Tokenizer.from_merges(merges, special_tokens=["<a very long special token>"])
    longest = inspection._describe_longest(tokenizer)
    assert longest[:3] == ["the longest:", "     4 bytes  'abab'", "     2 bytes  'ab'"]
    assert len(longest) == 11
    kinds = inspection._describe_kinds(tokenizer)
    assert kinds[0] == "what the tokens are:"
    words = next(line for line in kinds if "words and parts" in line)
    assert words == f"  words and parts of words               54  {100 * 54 / 261:5.1f} %"
    total = sum(int(line.split()[-3].replace(",", "")) for line in kinds[1:-1])
    assert total == 261
    assert kinds[-1] == f"  {(256 + 4 + 4 * 2) / 261:.2f} bytes long on average"
