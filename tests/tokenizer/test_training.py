"""train_tokenizer: exact and byte-identical whatever the files, the threads and the budget."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lowtide.cli import main
from lowtide.corpus.contents import hash_stored
from lowtide.corpus.inputs import expand_inputs
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.memory import MemoryBudget, format_size, smallest_budget
from lowtide.progress import Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import (
    END_OF_TEXT,
    UNKNOWN,
    Tokenizer,
    countingplan,
    learning,
    reference,
    training,
)
from lowtide.tokenizer.learning import LearnedMerges
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.trained import describe_trained
from lowtide.tokenizer.training import train_tokenizer

MakeText = Callable[[int, int], bytes]
FILES = ["merges.txt", "tokenizer.json", "training.json", "vocab.json"]


@pytest.fixture(scope="session")
def documents(make_text: MakeText) -> list[str]:
    """Documents without special tokens in them."""
    texts = [make_text(3 * seed, 4_000).decode() for seed in range(12)]
    return [text.replace("<", "").replace("|", "") for text in texts]


@pytest.fixture
def text_file(tmp_path: Path, documents: list[str]) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(END_OF_TEXT.join(documents).encode())
    return path


def test_learns_what_the_reference_learns(tmp_path: Path, text_file: Path) -> None:
    for tie_break in ("huggingface", "cs336"):
        trained = train_tokenizer(
            input=text_file,
            out_dir=tmp_path / tie_break,
            vocab_size=257 + 60,
            tie_break=tie_break,
        )
        counts = reference.count_pieces(
            [text_file.read_bytes()], pattern="gpt2", specials=[END_OF_TEXT]
        )
        merges = reference.learn_merges(counts, target=60, tie_break=tie_break)
        assert trained.tokenizer.merges == merges
        assert trained.tokenizer.special_tokens == {END_OF_TEXT: 0}
        assert trained.tokenizer.vocab_size == 317
        assert trained.record["counts"] == {
            "bytes": text_file.stat().st_size,
            "pieces": counts.total(),
            "distinct_pieces": len(counts),
            "merges": 60,
            "vocab_size": 317,
        }
        again = Tokenizer.load(tmp_path / tie_break)
        assert again.fingerprint == trained.tokenizer.fingerprint == trained.record["fingerprint"]


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_trained_tokenizers_encode_as_the_reference(text_file: Path, pattern: str) -> None:
    ours = train_tokenizer(input=[text_file], vocab_size=400, pattern=pattern).tokenizer
    text = text_file.read_bytes()[:5000]
    expected = reference.encode(text, merges=ours.merges, pattern=pattern)
    assert [ours.token_bytes(id) for id in ours.encode(text, special="text")] == expected


def test_the_number_of_threads_changes_nothing(tmp_path: Path, text_file: Path) -> None:
    contents: set[tuple[bytes, ...]] = set()
    for number, options in enumerate(
        [{"processes": 1}, {"processes": 2}, {"processes": 4, "memory": "8GiB"}]
    ):
        out_dir = tmp_path / str(number)
        train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=700, **options)
        assert sorted(path.name for path in out_dir.iterdir()) == sorted([*FILES, "metrics.jsonl"])
        contents.add(tuple((out_dir / name).read_bytes() for name in FILES))
    assert len(contents) == 1


def test_small_tables_and_little_memory_change_nothing(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    plain = train_tokenizer(input=[text_file], out_dir=tmp_path / "plain", vocab_size=400)
    monkeypatch.setattr(learning, "planned_bytes", lambda *sizes: 1 << 62)
    limits: list[int] = []
    counter_class = countingplan._native.PieceCounter

    def counter_with_small_tables(*arguments: object, **options: int) -> object:
        limits.append(options["table_bytes"])
        return counter_class(*arguments, **(options | {"table_bytes": 1 << 18}))

    monkeypatch.setattr(countingplan._native, "PieceCounter", counter_with_small_tables)
    tight = train_tokenizer(input=[text_file], out_dir=tmp_path / "tight", vocab_size=400)
    assert limits
    assert tight.tokenizer.fingerprint == plain.tokenizer.fingerprint
    for name in FILES:
        assert (tmp_path / "tight" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def small(kind: str) -> dict[str, Any]:
    """Settings of a small tokenizer; the characters of the text alone decide how many there are."""
    return {"kind": kind, **({"vocab_size": 280} if kind == "bpe" else {})}


def write_corpus(kind: str, folder: Path, documents: list[str]) -> list[Path]:
    """Write the documents as files of one kind."""
    folder.mkdir()
    data = END_OF_TEXT.join(documents).encode()
    if kind == "gz":
        (folder / "a.txt.gz").write_bytes(gzip.compress(data))
    elif kind == "zst":
        (folder / "a.txt.zst").write_bytes(zstandard.compress(data))
    elif kind == "xz":
        (folder / "a.txt.xz").write_bytes(lzma.compress(data))
    elif kind == "bz2":
        (folder / "a.txt.bz2").write_bytes(bz2.compress(data))
    elif kind in ("jsonl", "jsonl.gz"):
        rows = "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in documents).encode()
        (folder / f"a.{kind}").write_bytes(gzip.compress(rows) if kind.endswith("gz") else rows)
    elif kind == "parquet":
        pq.write_table(pa.table({"text": documents}), folder / "a.parquet", row_group_size=3)
    elif kind == "many files":
        for number, text in enumerate(documents):
            (folder / f"{number:02}.txt").write_bytes(text.encode())
    elif kind == "utf-16":
        (folder / "a.txt").write_bytes(data.decode().encode("utf-16"))
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "kind", ["gz", "zst", "xz", "bz2", "jsonl", "jsonl.gz", "parquet", "many files", "utf-16"]
)
def test_every_kind_of_file_gives_the_same(
    tmp_path: Path, text_file: Path, documents: list[str], kind: str
) -> None:
    expected = train_tokenizer(input=[text_file], vocab_size=600)
    paths = write_corpus(kind, tmp_path / "corpus", documents)
    options = {"encoding": "utf-16"} if kind == "utf-16" else {}
    for source in (paths, [tmp_path / "corpus"]):
        trained = train_tokenizer(input=source, vocab_size=600, **options)
        assert trained.tokenizer.fingerprint == expected.tokenizer.fingerprint
        assert trained.record["counts"]["pieces"] == expected.record["counts"]["pieces"]


def test_special_tokens_are_never_counted_nor_merged_across(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("<|sep|>".join(["ab"] * 50 + ["x<|sep|>y"] * 9) + "<|se" * 3)
    specials = ["<|endoftext|>", "<|sep|>", "<|sep|>x", "<|sep|>"]
    trained = train_tokenizer(input=[path], vocab_size=300, special_tokens=specials)
    assert trained.tokenizer.special_tokens == {"<|endoftext|>": 0, "<|sep|>": 1, "<|sep|>x": 2}
    assert trained.tokenizer.merges[0] == (b"a", b"b")
    learned = {left + right for left, right in trained.tokenizer.merges}
    assert learned == {b"ab", b"<|", b"se"}  # of what looks like the beginning of one


def test_an_early_end_is_reported(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("low lower lowest")
    trained = train_tokenizer(input=[path], vocab_size=5000)
    size = trained.tokenizer.vocab_size
    assert size < 300
    assert f"the vocabulary has {size} tokens, 5000 were asked for" in capsys.readouterr().err
    trained = train_tokenizer(input=[text_file], vocab_size=5000, min_frequency=50)
    assert "no pair is left that occurs 50 times" in capsys.readouterr().err
    counts = reference.count_pieces(
        [text_file.read_bytes()], pattern="gpt2", specials=[END_OF_TEXT]
    )
    assert trained.tokenizer.merges == reference.learn_merges(
        counts, target=5000, tie_break="huggingface", min_frequency=50
    )


def test_characters(tmp_path: Path, text_file: Path, documents: list[str]) -> None:
    trained = train_tokenizer(input=[text_file], out_dir=tmp_path / "char", kind="char")
    characters = set("".join(documents))
    assert trained.tokenizer.special_tokens == {END_OF_TEXT: 0, UNKNOWN: 1}
    assert trained.tokenizer.vocab_size == 2 + len(characters)
    text = documents[3]
    again = Tokenizer.load(tmp_path / "char")
    assert again.decode(again.encode(text)) == text
    assert again.encode("\U0001f9ff").tolist() == [1]


def test_characters_across_blocks(tmp_path: Path) -> None:
    """A line longer than any block, of characters of several bytes."""
    path = tmp_path / "text.txt"
    path.write_text("é中😀" * 1_200_000)
    trained = train_tokenizer(input=[path], kind="char")
    assert trained.tokenizer.vocab_size == 5


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_kill_while_the_files_are_written_is_survived(
    tmp_path: Path, text_file: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"input": [text_file], **small(kind)}
    whole = train_tokenizer(**given, out_dir=tmp_path / "whole").tokenizer
    rename = Path.replace
    for last in ("training.json", "vocab.json", "merges.txt", "tokenizer.json"):
        out = tmp_path / last

        def stop(partial: Path, path: Path, last: str = last) -> Path:
            if path.name == last:
                raise KeyboardInterrupt
            return rename(partial, path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", stop)
            if (tmp_path / "whole" / last).exists():
                with pytest.raises(KeyboardInterrupt):
                    train_tokenizer(**given, out_dir=out)
                assert not (out / "tokenizer.json").exists()
        again = train_tokenizer(**given, out_dir=out).tokenizer
        assert again.fingerprint == whole.fingerprint


def test_a_finished_tokenizer_is_left_alone(tmp_path: Path, text_file: Path) -> None:
    out_dir = tmp_path / "tok"
    first = train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)
    times = {name: (out_dir / name).stat().st_mtime_ns for name in FILES}
    again = train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300, processes=1)
    assert again.was_there and not first.was_there
    assert again.record == first.record
    assert times == {name: (out_dir / name).stat().st_mtime_ns for name in FILES}
    assert "(was there already)" in describe_trained(again, out_dir)
    with pytest.raises(UsageError, match="made with --vocab-size 300, now it is 301"):
        train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=301)
    text = text_file.read_bytes()
    text_file.write_bytes(text + b" more")
    with pytest.raises(UsageError, match=r"had \d+ bytes then, now \d+"):
        train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)
    text_file.write_bytes(text[::-1])
    with pytest.raises(UsageError, match="holds other text of the same size than then"):
        train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)
    text_file.write_bytes(text)
    os.utime(text_file, (1, 1))
    assert train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300).was_there, "touched"


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_every_kind_is_known_by_content(tmp_path: Path, text_file: Path, kind: str) -> None:
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(b"low tide, low water"))
    given: dict[str, Any] = {"input": [text_file, packed], **small(kind)}
    given["out_dir"] = tmp_path / "tok"
    train_tokenizer(**given)
    for path in (text_file, packed):
        os.utime(path, (1, 1))
    assert train_tokenizer(**given).was_there
    packed.write_bytes(packed.read_bytes()[::-1])
    os.utime(packed, (2, 2))
    with pytest.raises(UsageError, match=r"b\.txt\.gz holds other text"):
        train_tokenizer(**given)


def test_a_tokenizer_of_others_is_left_alone(
    tmp_path: Path, text_file: Path, small_tokenizer: Tokenizer
) -> None:
    small_tokenizer.save(tmp_path / "tok")
    with pytest.raises(DataError, match="lowtide did not train"):
        train_tokenizer(input=[text_file], out_dir=tmp_path / "tok")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 256}, r"need 257\n.*next: --vocab-size 257 or more"),
        ({"vocab_size": 300, "special_tokens": ["<s>", ""]}, "cannot be empty"),
        ({"vocab_size": 300, "special_tokens": ["a"]}, "single character"),
        ({"kind": "char", "vocab_size": 300}, "--vocab-size has no effect with --kind char"),
        ({"kind": "char", "pattern": "o200k"}, "--pattern has no effect with --kind char"),
        ({"kind": "char", "min_frequency": 2}, "--min-frequency has no effect with --kind char"),
        ({"min_frequency": 0}, "below 1"),
        ({"processes": 0}, "at least 1"),
        ({"memory": "much"}, "not a size"),
        ({"pattern": "gpt5"}, "pattern"),
        ({"vocab_sise": 300}, "did you mean vocab_size"),
    ],
)
def test_settings_that_make_no_sense(
    text_file: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        train_tokenizer(input=[text_file], **options)


def test_a_budget_too_small_names_one_that_would_do(text_file: Path) -> None:
    with pytest.raises(BudgetError, match="is too small") as caught:
        train_tokenizer(input=[text_file], memory="16MiB")
    assert "give at least --memory" in str(caught.value)


# The command


def run_cli(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["train-tokenizer", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command(tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_cli(
        capsys,
        *("--input", text_file, "--vocab_size", 300, "--output-prefix", tmp_path / "tok"),
        *("--processes", 2, "--special-tokens", END_OF_TEXT, "<|startoftext|>"),
    )
    assert code == 0
    assert "bpe tokenizer with 300 tokens" in out
    assert "lowtide prepare" in out
    for phase in ("counting", "sorting", "merging", "peak memory"):
        assert phase in err
    assert re.search(r"counting .* pieces [1-9]", err), "all that was counted, whoever holds it"
    ours = Tokenizer.load(tmp_path / "tok")
    assert ours.special_tokens == {END_OF_TEXT: 0, "<|startoftext|>": 1}
    assert not (tmp_path / "tok" / ".work").exists()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("empty.txt", 1, "there is no text"),
        ("missing.txt", 1, "no such file"),
        ("*.nothing", 1, "no file matches"),
    ],
)
def test_inputs_without_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, message: str
) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    found, _, err = run_cli(capsys, "--input", tmp_path / name, "--out-dir", tmp_path / "tok")
    assert found == code
    assert message in err
    assert "Traceback" not in err


def test_damaged_inputs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = {
        "a.txt.gz": gzip.compress(b"some text " * 5000)[:60],
        "b.txt.zst": b"no zstd at all",
        "c.jsonl": b'{"text": "fine"}\n{"text": \n',
        "d.parquet": b"PAR1 or so",
        "e.jsonl": b'{"other": "field"}\n',
        "f.txt": "some text".encode("utf-16"),
    }
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        code, _, err = run_cli(
            capsys, "--input", tmp_path / name, "--out-dir", tmp_path / "tok" / name
        )
        assert code == 1, name
        assert name in err
        assert "Traceback" not in err and "unexpected" not in err


def test_bad_inputs_are_skipped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"the cat sat on the mat " * 3000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text)[:-30])
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a dog"}\n{"text": \n{"text": "and more"}\n')
    words = ["--input", tmp_path, "--out-dir", tmp_path / "tok", "--vocab-size", 300]
    code, _, err = run_cli(capsys, *words, "--skip-bad-inputs")
    assert code == 0
    assert "damaged or cut-off gzip file" in err
    assert "not JSON" in err
    record = json.loads((tmp_path / "tok" / "training.json").read_text())
    assert record["counts"]["bytes"] >= len(b"a dogand more")


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_text_without_a_place_to_cut_is_refused(tmp_path: Path, name: str) -> None:
    """Rather than held in memory as a whole, whatever its size."""
    text = b"a" * (20 << 20)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text, 1) if name.endswith("gz") else text)
    # In a process of its own: a small budget must not be taken up by what other tests imported.
    program = [sys.executable, "-m", "lowtide", "train-tokenizer"]
    words = ["--input", str(path), "--out-dir", str(tmp_path / "tok"), "--vocab-size", "260"]
    refused = subprocess.run(
        [*program, *words, "--memory", "128MiB"], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "no place to cut" in refused.stderr
    assert name in refused.stderr
    # With half of this machine's memory there is room.
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_output_that_cannot_be_written(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = run_cli(capsys, "--input", text_file, "--out-dir", tmp_path / "file" / "tok")
    assert code == 1
    assert "not a folder" in err
    code, _, err = run_cli(capsys, "--input", text_file)
    assert code == 2
    assert "--out-dir" in err
    code, _, err = run_cli(
        capsys, "--input", text_file, "--out-dir", tmp_path / "t", "--memory", "20MiB"
    )
    assert code == 1
    assert "give at least --memory" in err


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "large.txt"])
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_binaries_are_refused_as_prepare_does_it(tmp_path: Path, name: str, kind: str) -> None:
    data = b"\x7fELF\0\1" * (200_000 if name == "large.txt" else 100)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    good = tmp_path / "good.txt"
    good.write_text("good text")
    with pytest.raises(DataError, match="binary file: byte 4 is NUL") as caught:
        train_tokenizer(input=[path, good], **small(kind))
    assert caught.value.path == path
    trained = train_tokenizer(input=[path, good], **small(kind), skip_bad_inputs=True)
    assert trained.record["counts"]["bytes"] == 9


def test_text_in_another_encoding_gets_the_batch_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("grün und blau ".encode("latin-1") * 100)
    plain, decoded = (
        countingplan._fixed_bytes(1, is_plain=is_plain)["batch of text"]
        for is_plain in (True, False)
    )
    assert decoded == 4 * plain  # held as text, as bytes, and once more while they are joined
    reserved: dict[str, int] = {}

    class Budget(MemoryBudget):
        def reserve(self, name: str, **sizes: int) -> int:
            reserved[name] = sizes["wanted_bytes"]
            return super().reserve(name, **sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "MemoryBudget", Budget)
        train_tokenizer(input=[path], vocab_size=260, encoding="latin-1", memory="8GiB")
    assert reserved["batch of text"] == decoded


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_text_that_changes_meanwhile_makes_no_tokenizer(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("low lower lowest " * 50)
    name = "count_pieces" if kind == "bpe" else "scan_characters"
    original = getattr(training, name)

    def overwrite(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        path.write_text("other text")
        return result

    monkeypatch.setattr(training, name, overwrite)
    with pytest.raises(DataError, match="changed while it was read") as caught:
        train_tokenizer(input=[path], **small(kind), out_dir=tmp_path / "out")
    assert caught.value.path == path
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("processes", [1, 6])
def test_the_smallest_budget_is_the_smallest_that_is_taken(
    processes: int, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one thread, however many are asked for; the list of the files comes on top."""
    smallest = countingplan.smallest_budget_bytes(1)
    assert countingplan.smallest_budget_bytes(6) == smallest + 5 * countingplan._THREAD_BYTES
    for total, is_enough in ((smallest + (64 << 10), True), (smallest - 1, False)):
        budget = MemoryBudget(total, used_bytes=countingplan._PROGRAM_BYTES)
        monkeypatch.setattr(training.MemoryBudget, "from_setting", lambda _, found=budget: found)
        options = {"vocab_size": 300, "processes": processes, "memory": "1GiB"}
        if is_enough:
            assert train_tokenizer(input=[text_file], **options).tokenizer.vocab_size == 300
        else:
            with pytest.raises(BudgetError, match="too small"):
                train_tokenizer(input=[text_file], **options)


def test_a_vocabulary_that_ends_early_is_told_and_a_full_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("low lower lowest")
    full = train_tokenizer(input=[tmp_path / "a.txt"], vocab_size=260)
    assert full.tokenizer.vocab_size == 260
    assert "no pair is left" not in capsys.readouterr().err
    early = train_tokenizer(input=[tmp_path / "a.txt"], vocab_size=2000, min_frequency=2)
    said = capsys.readouterr().err
    assert "no pair is left that occurs 2 times" in said
    assert f"has {early.tokenizer.vocab_size} tokens, 2000 were asked for" in said


def test_tokens_as_long_as_the_text_are_refused_before_they_are_written(tmp_path: Path) -> None:
    """The first advice is enough for all of them."""
    (tmp_path / "a.txt").write_text("abcdefghij" * 10_000)
    options: dict[str, Any] = {"input": [tmp_path / "a.txt"], "vocab_size": 400}
    options["limits"] = CountingLimits(written_byte_bytes=800)
    with pytest.raises(BudgetError, match=r"a token has 97\.7 KiB") as caught:
        train_tokenizer(**options, out_dir=tmp_path / "tok", memory="100MiB")
    assert not (tmp_path / "tok" / "tokenizer.json").exists()
    (enough,) = re.findall(r"--memory (\w+)", str(caught.value))
    train_tokenizer(**options, out_dir=tmp_path / "tok", memory=enough)
    vocabulary = json.loads((tmp_path / "tok" / "vocab.json").read_text())
    assert max(map(len, vocabulary)) == 100_000
    train_tokenizer(**options, out_dir=tmp_path / "short", max_token_bytes=999)
    vocabulary = json.loads((tmp_path / "short" / "vocab.json").read_text())
    assert max(map(len, vocabulary)) == 800  # two of 640 are too long


def test_a_learned_tokenizer_is_described_line_by_line(tmp_path: Path, text_file: Path) -> None:
    out_dir = tmp_path / "tok"
    trained = train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)
    counts = trained.record["counts"]
    assert counts["bytes"] == text_file.stat().st_size and counts["merges"] > 0
    assert describe_trained(trained, out_dir).splitlines() == [
        f"bpe tokenizer with {trained.tokenizer.vocab_size:,} tokens in {out_dir}",
        f"  text         {format_size(counts['bytes'])}",
        f"  pieces       {counts['pieces']:,}, {counts['distinct_pieces']:,} of them distinct",
        f"  merges       {counts['merges']:,}",
        f"  fingerprint  {trained.tokenizer.fingerprint}",
        f"next: lowtide prepare --input-files FILES --tokenization {out_dir} --out-dir data/mine",
    ]


def test_what_reading_took_is_free_for_the_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc")
    settings = build_settings(TokenizerTrainingSettings, {"input": [path], "vocab_size": 300})
    budget = MemoryBudget(1 << 30, used_bytes=0)
    with Progress("test", stream=None) as progress:
        vocabulary, counts = training._scan_characters(
            settings, expand_inputs([path]), budget, progress, reading=1000
        )
    assert counts["bytes"] == 3 and counts["vocab_size"] == len(vocabulary.tokens)
    left = (1 << 30) - training.SLACK_BYTES - 3 * training.CHARACTER_BYTES
    assert budget.remaining_bytes == left


def test_the_list_of_files_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("low lower lowest")
    budget = MemoryBudget(1 << 30, used_bytes=0)
    monkeypatch.setattr(training.MemoryBudget, "from_setting", lambda _: budget)
    train_tokenizer(input=[tmp_path], vocab_size=260)
    assert budget.shares["list of files"] == 5 * 450
    assert budget.spread_bytes == 5 * 16


def test_what_is_spilled_is_told(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was counted before a stop is added."""
    settings = build_settings(TokenizerTrainingSettings, {"input": [text_file], "vocab_size": 300})
    inputs = expand_inputs([text_file])
    for runs, said in ((0, []), (3, ["counts did not fit 5.0 MiB: spilled and merged"])):
        counter = SimpleNamespace(spilled_runs=runs, bytes_done=100, pieces_done=7)
        plan = SimpleNamespace(make_counter=lambda _, one=counter: one, needs=None, options=None)
        monkeypatch.setattr(training, "plan_counting", lambda *_, one=plan: one)
        monkeypatch.setattr(training, "count_pieces", lambda *_, **__: None)
        budget = MemoryBudget(1 << 30, used_bytes=0)
        budget.count("counting tables", 5 << 20)
        notes: list[str] = []
        progress: Any = SimpleNamespace(note=notes.append)
        checkpoints: Any = SimpleNamespace(folder=tmp_path, bytes_before=20, pieces_before=3)
        found = training._count(settings, inputs, budget, progress, checkpoints, 0)
        assert found == (counter, {"bytes": 120, "pieces": 10}) and notes == said


def test_tokens_are_numbered_by_both_rules() -> None:
    """Special tokens first, then bytes, then what merges make, in their order."""
    merges = [(b"a", b"b"), (b"ab", b"c"), (b"b", b"c"), (b"abc", b"d")]
    tokens = (b"ab", b"abc", b"bc", b"abcd")
    made = [*(bytes([byte]) for byte in range(256)), *tokens]
    rows = [(made.index(left) + 2, made.index(right) + 2, made.index(left + right) + 2)
            for left, right in merges]  # fmt: skip
    learned = LearnedMerges(made, memoryview(array("I", chain.from_iterable(rows))))
    assert len(learned) == 4
    for rule in ("huggingface", "cs336"):
        given = {"input": ["a"], "vocab_size": 300, "tie_break": rule, "pattern": "o200k"}
        settings = build_settings(TokenizerTrainingSettings, given)
        found = training._number(settings, ("<s>", "<t>"), learned)
        assert found.tokens[:2] == (b"<s>", b"<t>") and found.tokens[258:] == tokens
        assert found.special_tokens == {"<s>": 0, "<t>": 1} and found.pattern == "o200k"
        assert found.merge_bytes() == merges
        assert found.merge_ids is not None and found.merge_ids.tolist() == [*chain(*rows)]


def test_characters_that_do_not_fit_are_named_with_all_they_take(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(map(chr, range(0x4E00, 0x4E00 + 3000))))
    inputs = expand_inputs([tmp_path])
    settings = build_settings(TokenizerTrainingSettings, {"input": [tmp_path], "kind": "char"})
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    with pytest.raises(BudgetError) as caught:
        training._scan_characters(
            settings, inputs, MemoryBudget(1 << 20, used_bytes=0), progress, 1
        )
    more = max(3000 * training.CHARACTER_BYTES - training._SCAN_BYTES - 1, 0)
    needed = training._SCAN_BYTES + 1 + training.SLACK_BYTES + more
    assert smallest_budget(needed) in str(caught.value.next_step)
    assert notes == []


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("[]", "nothing says what it was made of"),
        ('{"settings": {}}', "nothing says what it was made of"),
        ('{"settings": 5, "input_files": []}', "nothing says what it was made of"),
        ('{"settings": {}, "input_files": 5}', "nothing says what it was made of"),
    ],
)
def test_a_tokenizer_whose_record_says_nothing_is_left_alone(
    tmp_path: Path, text_file: Path, record: str, why: str
) -> None:
    train_tokenizer(input=[text_file], out_dir=tmp_path / "tok", vocab_size=300)
    (tmp_path / "tok" / "training.json").write_text(record)
    with pytest.raises(DataError, match=why):
        train_tokenizer(input=[text_file], out_dir=tmp_path / "tok", vocab_size=300)


def test_what_a_kill_at_the_end_left_is_removed_by_the_next_command(
    tmp_path: Path, text_file: Path
) -> None:
    given: dict[str, Any] = {"input": [text_file], "out_dir": tmp_path / "tok", "vocab_size": 300}
    train_tokenizer(**given)
    work = tmp_path / "tok" / ".work"
    work.mkdir()
    (work / "counting.json").write_text("{}")
    assert train_tokenizer(**given).was_there
    assert not work.exists()


def test_a_tokenizer_that_another_command_ended_while_this_one_waited_is_taken(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"input": [text_file], "out_dir": tmp_path / "tok", "vocab_size": 300}
    plain = training.hold_lock

    @contextlib.contextmanager
    def end_first(*args: Any, **more: Any) -> Any:
        assert (args, more) == ((tmp_path / "tok",), {"create_folder": True})
        with monkeypatch.context() as patch:
            patch.setattr(training, "hold_lock", plain)
            train_tokenizer(**given)
        with plain(*args, **more):
            yield

    monkeypatch.setattr(training, "hold_lock", end_first)
    found = train_tokenizer(**given)
    assert found.was_there and found.tokenizer.vocab_size == 300


def test_rows_of_a_record_that_are_none_are_named(tmp_path: Path, text_file: Path) -> None:
    out_dir = tmp_path / "tok"
    train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)
    record = json.loads((out_dir / "training.json").read_text())
    (out_dir / "training.json").write_text(json.dumps({**record, "input_files": [5]}))
    with pytest.raises(DataError, match="nothing says which files it was made of"):
        train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300)


@pytest.mark.parametrize("kept", [False, True])
def test_contents_are_hashed_beside_the_counting_where_they_are_recorded(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """So that what has changed is known after a stop, and text is not read from the disk twice."""
    made: list[Any] = []
    closed: list[Any] = []

    class Log(training.ContentLog):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(more)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(training, "ContentLog", Log)
    out_dir = tmp_path / "tok" if kept else None
    limits = CountingLimits(hash_part_bytes=1000, small_file_bytes=100)
    trained = train_tokenizer(input=[text_file], out_dir=out_dir, vocab_size=300, limits=limits)
    assert made == [{"part_bytes": 1000}] * kept and len(closed) == len(made)
    (row,) = trained.record["input_files"]
    (source,) = expand_inputs([text_file])
    assert row["content"] == (hash_stored(source, part_bytes=1000) if kept else None)
