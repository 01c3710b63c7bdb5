"""What a vocabulary takes is known by its files: many tokens, or long ones, are not passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.needs import NO_MORE, tokenizer_needs, vocabulary_bytes

MIB = 1 << 20
_LOAD = """
import re, sys
import numpy
from lowtide.tokenizer import Tokenizer

def kib(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

before = kib("VmRSS")
tokenizer = Tokenizer.load(sys.argv[1])
tokenizer.save(sys.argv[2])
print((kib("VmHWM") - before) << 10, len(tokenizer.fingerprint))
"""


@pytest.fixture(scope="module")
def long_tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """23 tokens, of which the longest has 4 MiB."""
    merges = [(b"a", b"a")]
    while len(merges[-1][0]) < 2 * MIB:
        merges.append((merges[-1][0] * 2, merges[-1][0] * 2))
    return Tokenizer.from_merges(merges)


@pytest.mark.parametrize("form", ["tokenizer.json", "folder", "vocab.json"])
def test_long_tokens_are_counted_by_their_files(
    form: str, long_tokens: Tokenizer, tmp_path: Path
) -> None:
    if form == "vocab.json":
        long_tokens.save_vocabulary(tmp_path)
    else:
        long_tokens.save(tmp_path)
    source = tmp_path if form == "folder" else tmp_path / form
    command = [sys.executable, "-c", _LOAD, str(source), str(tmp_path / "again")]
    taken, _ = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert 16 * MIB < int(taken) <= vocabulary_bytes(source)
    assert tokenizer_needs(source).table_bytes > 0
    assert not tokenizer_needs(source).by_package


def test_added_tokens_count(tmp_path: Path) -> None:
    specials = [f"<{i}>" for i in range(40_000)]
    Tokenizer.from_merges([(b"a", b"a")], special_tokens=specials).save(tmp_path)
    command = [sys.executable, "-c", _LOAD, str(tmp_path), str(tmp_path / "again")]
    taken, _ = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert 0.6 * vocabulary_bytes(tmp_path) < int(taken) <= vocabulary_bytes(tmp_path)


def test_usual_vocabularies_are_in_the_share_that_verbs_have(tmp_path: Path) -> None:
    Tokenizer.load("gpt2").save(tmp_path)
    Tokenizer.load("gpt2").save_tiktoken(tmp_path / "ranks.tiktoken")
    assert vocabulary_bytes(tmp_path) > 8 * MIB
    assert vocabulary_bytes(tmp_path / "ranks.tiktoken") > 8 * MIB
    assert tokenizer_needs(tmp_path) == tokenizer_needs("gpt2") == NO_MORE
    assert vocabulary_bytes(tmp_path / "gone") == vocabulary_bytes("char") == 0


@pytest.mark.parametrize(
    ("name", "times"),
    [("tokenizer.model", 75), ("tokenizer.model.v3", 75), ("tekken.json", 11), ("a.tiktoken", 25)],
)
def test_each_kind_of_file_takes_its_own_many_times(tmp_path: Path, name: str, times: int) -> None:
    (tmp_path / name).write_bytes(b"{}" * 500)
    assert vocabulary_bytes(tmp_path / name) == times * 1000 + (3 << 20)
    if name in ("tokenizer.model", "tekken.json"):
        assert vocabulary_bytes(tmp_path) == vocabulary_bytes(tmp_path / name)
        (tmp_path / "tokenizer.json").write_bytes(b"{}")  # comes first
        assert vocabulary_bytes(tmp_path) == 7 * 2 + (3 << 20)


def test_two_files_are_taken_together(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes(b"{}" * 500)
    (tmp_path / "merges.txt").write_bytes(b"a b\n")
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert vocabulary_bytes(path) == 11 * 1004 + (3 << 20)
    assert vocabulary_bytes(tmp_path / "not there") == 0
