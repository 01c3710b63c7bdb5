"""Encodings of text files: what is none is refused before any work, with what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide import cli
from lowtide.corpus.decompression import open_stream
from lowtide.corpus.encodings import (
    check_encoding,
    explain_undecodable,
    is_utf8,
    make_decoder,
    refuse_utf8,
)
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.errors import DataError, UsageError

NO_ENCODINGS = ["base64", "rot13", "hex", "zlib", "idna", "punycode", "undefined", "unicode_escape"]
NO_ENCODINGS += ["raw_unicode_escape", "klingon", "", "a\0b"]


def command(verb: str, path: Path, encoding: str) -> list[str]:
    out = str(path.parent / "out")
    words = {
        "train-tokenizer": ["--input", str(path), "--vocab-size", "260", "--out-dir", out],
        "prepare": ["--input-files", str(path), "--tokenization", "char", "--out-dir", out],
        "pretokenize": [str(path), "--tokenization", "char", "--out-path", f"{out}.npy"],
    }
    return [verb, *words[verb], "--encoding", encoding]


@pytest.mark.parametrize("encoding", NO_ENCODINGS)
def test_what_is_no_encoding_of_files_is_refused_with_what_works(encoding: str) -> None:
    with pytest.raises(UsageError, match="not an encoding of text files") as caught:
        check_encoding(encoding)
    assert "latin-1" in (caught.value.next_step or "")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "cp1252", "SHIFT_JIS", "utf-7", "u8"])
def test_encodings_of_files_are_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "Text" if encoding in ("utf-7", "SHIFT_JIS") else "Übung"
    path.write_bytes(text.encode(encoding))
    with open_stream(expand_inputs([path])[0], ReadingSettings(encoding=encoding)) as reader:
        assert reader.read(100).decode() == text


def test_utf8_needs_no_decoder() -> None:
    for name in ("utf-8", "UTF_8", "utf8"):
        assert is_utf8(name)
        assert make_decoder(name) is None


@pytest.mark.parametrize("verb", ["train-tokenizer", "prepare", "pretokenize"])
@pytest.mark.parametrize("encoding", ["base64", "rot13"])
def test_verbs_refuse_them(
    verb: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("enough words for a document, and some more")
    assert cli.main(command(verb, tmp_path / "a.txt", encoding)) == 2
    message = capsys.readouterr().err
    assert f"--encoding {encoding!r} is not an encoding" in message
    assert "unexpected" not in message


@pytest.mark.parametrize("verb", ["train-tokenizer", "prepare", "pretokenize"])
def test_utf16_without_its_mark(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("enough words for a document, and some more".encode("utf-16-le"))
    assert cli.main(command(verb, path, "utf-16")) == 1
    message = capsys.readouterr().err
    assert "the mark at its beginning is missing" in message
    assert f"file: {path}" in message
    assert "next: --encoding utf-16-le" in message
    assert cli.main(command(verb, path, "utf-16-le")) == 0


def test_it_is_skipped_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("some text".encode("utf-16-le"))
    told: list[DataError] = []
    options = ReadingSettings(encoding="utf-16")
    with open_stream(expand_inputs([path])[0], options, on_damage=told.append) as reader:
        assert reader.read(100) == b""
    assert [error.path for error in told] == [path]


def test_a_decoder_that_gives_up_is_quoted() -> None:
    problem = explain_undecodable("utf-7", ValueError("no such letter"))
    assert problem.message == "this cannot be read as utf-7: no such letter"
    assert problem.next_step == "--encoding utf-8"


@pytest.mark.parametrize(
    ("encoding", "head", "refused"),
    [
        ("utf-16", b"x" * 64, True), ("utf-16-le", b"x" * 64, True), ("utf-32", b"x" * 64, True),
        ("utf-16", b"x" * 63, False), ("utf-16", b"x" * 63 + b"\0", False),
        ("utf-16", b"\xff" * 64, False), ("latin-1", b"x" * 64, False),
        ("utf-16", b"x" * 63 + b"\xc3", True),  # a character that is cut at the end
    ],
)  # fmt: skip
def test_utf8_under_another_name_is_known_by_its_first_bytes(
    encoding: str, head: bytes, refused: bool
) -> None:
    if not refused:
        refuse_utf8(encoding, head)
        return
    with pytest.raises(DataError, match=f"this looks like UTF-8, not {encoding}"):
        refuse_utf8(encoding, head)


def test_the_head_is_gathered_until_it_tells(tmp_path: Path) -> None:
    """Of reads of a few bytes; beyond that nothing is held."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain words, " * 20)
    (source,) = expand_inputs([path])
    options = ReadingSettings(encoding="utf-16-le")
    with open_stream(source, options) as reader:
        for _ in range(6):
            reader.read(10)
        with pytest.raises(DataError, match="this looks like UTF-8"):
            reader.read(10)
    path.write_bytes("plain words, ".encode("utf-16-le") * 20)
    (source,) = expand_inputs([path])
    with open_stream(source, options) as reader:
        while reader.read(10):
            pass
        assert reader._head is None
