"""Call every native entry point with 0, negative and huge numbers and with odd buffers.

Run by test_arguments.py in a process of its own, with a limit on memory: prints for each entry
point how many calls gave a result and how many an error. Anything else ends the process.
"""

from __future__ import annotations

import itertools
import os
import resource
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import _native

NUMBERS = (0, -1, 1, 3, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 70)
FEW = (0, -1, 1 << 63)
BYTES = [bytes([byte]) for byte in range(256)]
EXPECTED = (ValueError, TypeError, MemoryError, OSError, IndexError, RuntimeError, OverflowError)
EXPECTED = (*EXPECTED, _native.ReadError)

results: Counter[str] = Counter()
errors: Counter[str] = Counter()


def call(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    print(f"{name} {arguments!r} {named!r}"[:300], file=sys.stderr, flush=True)
    try:
        value = function(*arguments, **named)
    except EXPECTED:
        errors[name] += 1
        return None
    results[name] += 1
    return value


def vary(
    name: str,
    function: Callable[..., Any],
    good: dict[str, Any],
    changed: Iterable[str],
    numbers: Iterable[int] = NUMBERS,
    *,
    positional: bool = False,
) -> None:
    """Call with one number after the other replaced; the others as they should be."""
    numbers = tuple(numbers)
    for field, number in itertools.product(changed, numbers):
        values = {**good, field: number}
        if positional:
            call(name, function, *values.values())
        else:
            call(name, function, **values)


def call_tokenizer(folder: Path) -> None:
    text = folder / "a.txt"
    text.write_bytes(b"low tide\n" * 100)
    for pattern in ("gpt2", "none", ""):
        call("split", _native.split, pattern, b"low tide", "scalar")
    call("split", _native.split, "gpt2", b"", "what")
    for specials in ([], [b""], [b"x" * 100], [b"l"], "l"):
        call("safe_cuts", _native.testing.safe_cuts, b"low tide", specials)
        call("last_cut", _native.last_cut, b"low tide", specials)
    for tokens in ([], [b""], [b"a", b"a", b"aa"], BYTES, None, [1]):
        call("rules_by_rank", _native.rules_by_rank, tokens)
        call("join_with_lengths", _native.join_with_lengths, tokens)
    good = {
        "pattern": "gpt2",
        "specials": [],
        "num_threads": 1,
        "table_bytes": 1 << 20,
        "window_bytes": 64,
        "spill_dir": folder,
    }
    fields = ("num_threads", "table_bytes", "window_bytes")
    vary("PieceCounter", _native.PieceCounter, good, fields)
    call("PieceCounter", _native.PieceCounter, **{**good, "specials": [b""]})
    call("PieceCounter", _native.PieceCounter, **{**good, "spill_dir": "a\0b"})
    counter = _native.PieceCounter(**good)
    place = {"path": str(text), "begin": 0, "stop": 900, "end": 900}
    vary("PieceCounter", counter.count_file, place, ("begin", "stop", "end"))
    call("PieceCounter", counter.adopt, ["no-run", str(text)])
    call("PieceCounter", counter.adopt, [str(folder / "counts_99_00000001.run")])
    (folder / "counts_01_00000001.run").write_bytes(b"\xff" * 100)
    damaged = _native.PieceCounter(**good)
    damaged.adopt([str(folder / "counts_01_00000001.run")])
    call("PieceCounter", damaged.drain)
    counter.count_texts([b"low tide", b""])
    counter.drain()
    call("PieceCounter", counter.count_texts, [b"once more"])
    call("PieceCounter", counter.count_file, **place)
    call_learners(folder)
    call_vocabulary(folder, text)


def call_learners(folder: Path) -> None:
    in_file = {"file_dir": str(folder), "memory_bytes": 1 << 16}
    call_rounds(folder, in_file)
    for name in ("MergeLearner", "WideMergeLearner", "RoundLearner", "WideRoundLearner"):
        kind = getattr(_native, name)
        options = {} if name.endswith("MergeLearner") else in_file
        call(name, kind, "none", **options)
        for target, count, frequency in itertools.product(FEW, FEW, FEW):
            learner = kind("huggingface", **options)
            learner.take_items([(b"abab", 3), (b"", 1), (b"bab", 0)])
            learner.build()
            call(name, learner.learn, target, min(count, 1000), frequency)
        learner = kind("huggingface", **options)
        call(name, learner.learn, 5, 5, 1)  # before anything is there
        call(name, learner.take_items, [(b"ab", 1 << 63)])
        call(name, learner.take_items, [(b"ab", -1)])
        learner.take_items([(b"abab", 3)])
        learner.build()
        call(name, learner.build)
        learner.learn(2, 9, 1)
        call(name, learner.take_items, [(b"ab", 3)])


def call_rounds(folder: Path, options: dict[str, Any]) -> None:
    kind = _native.RoundLearner
    vary("RoundLearner", kind, {"tie_break": "cs336", **options}, ("memory_bytes",))
    call("RoundLearner", kind, "cs336", file_dir="no/where", memory_bytes=0)
    learner = kind("cs336", file_dir=str(folder), memory_bytes=0)
    learner.take_items([(b"abab", 3)])
    call("RoundLearner", learner.learn, 5, 5, 1)


def call_vocabulary(folder: Path, text: Path) -> None:
    make = _native.Vocabulary
    rest = {"whole_pieces": True, "cache_bytes": 0}
    for merges in (
        np.zeros(0, np.uint32),
        np.zeros(4, np.uint32),
        np.full(3, 0xFFFFFFFF, np.uint32),
        np.array([0, 1, 300], np.uint32),
    ):
        call("Vocabulary", make, "gpt2", [*BYTES, b"ab"], merges, [], **rest)
    for specials in ([(b"", 0)], [(b"x", 1 << 20)], [(b"x", -1)], [(b"x", 1), (b"y", 1)]):
        call("Vocabulary", make, "gpt2", BYTES, None, specials, **rest)
    for cache_bytes in NUMBERS:
        vocabulary = call(
            "Vocabulary", make, "gpt2", BYTES, None, [], whole_pieces=False, cache_bytes=cache_bytes
        )
        if vocabulary is not None and cache_bytes < 1 << 30:
            call("Vocabulary", vocabulary.encode, b"low tide", True)
    call("Vocabulary", make, "gpt2", BYTES[:255], None, [], **rest)
    vocabulary = make("gpt2", [*BYTES, b"<s>"], None, [(b"<s>", 256)], **rest)
    vary(
        "Vocabulary",
        vocabulary.encode_many,
        {"texts": [b"a", b""], "specials": True, "num_threads": 1},
        ("num_threads",),
    )
    for ids in (np.zeros(0, np.uint32), np.array([257], np.uint32), np.zeros((2, 2), np.uint32)):
        call("Vocabulary", vocabulary.decode, ids)
    for pieces in ([], [b""], [b"a" * 5000], [None]):
        call("Vocabulary", vocabulary.merge_pieces, pieces, "scalar")
    with (folder / "ids").open("wb") as out:
        good = {
            "input_path": str(text),
            "begin": 0,
            "stop": 900,
            "end": 900,
            "output_file": out.fileno(),
            "output_path": "ids",
            "output_offset": 0,
            "id_bytes": 4,
            "specials": True,
            "num_threads": 1,
            "window_bytes": 64,
        }
        numbers = [name for name, value in good.items() if type(value) is int]
        numbers.remove("output_file")  # 1 is where the report goes
        vary("Vocabulary", vocabulary.encode_file, good, ("output_file",), (-1, 9999, 1 << 40))
        # A file of 2^62 bytes is possible on some disks, and would be written in earnest.
        vary(
            "Vocabulary",
            vocabulary.encode_file,
            good,
            numbers,
            (n for n in NUMBERS if n != 1 << 31),
        )
        call("Vocabulary", vocabulary.encode_file, **{**good, "input_path": str(folder)})
        call("Vocabulary", vocabulary.encode_file, **{**good, "input_path": "a\0b"})


def call_pieces() -> None:
    good: dict[str, Any] = {
        "pattern": "spaces",
        "tokens": [*BYTES, b"\xc3\xa9", b"\xe2\x96"],
        "merges": np.array([0xC3, 0xA9, 256, 0xE2, 0x96, 257], np.uint32),
        "specials": [],
        "whole_pieces": False,
        "cache_bytes": 1 << 16,
        "first_half": 257,
        "blank_before": 1,
    }
    vary("Vocabulary", _native.Vocabulary, good, ("first_half", "blank_before"), NUMBERS)
    call("Vocabulary", _native.Vocabulary, **{**good, "first_half": None})
    call("Vocabulary", _native.Vocabulary, **{**good, "pattern": "gpt2"})
    for first in (0, 256, 257, 300):
        vocabulary = _native.Vocabulary(**{**good, "first_half": first})
        for text in (b"", b" ", b"\xe2\x96\x81", b"\xe2\x96\xe2", b"\xc3\xa9\xff \xc3", bytes(300)):
            for is_first in (True, False):
                call("Vocabulary", vocabulary.encode, text, True, is_first)
        call("Vocabulary", vocabulary.encode_many, [b"a"], True, 1)
        call("Vocabulary", vocabulary.last_cut, b"a b", True)
        call("Vocabulary", vocabulary.first_cut, b"a b", True)


def call_vocabulary_files() -> None:
    for text in (b"", b"{", b'{"model": {"vocab": {}, "merges": []}}', b"[" * 100_000, None):
        call("find_json_sections", _native.find_json_sections, text)
    for vocab in (b"", b"{}", b'{"a": 16777215}', b'{"a": -1}', b'{"a": 1e9}', b"{" * 10_000, 3):
        for merges in (b"", b"[]", b'["a a"]', b"[" * 10_000):
            call(
                "read_byte_level",
                _native.read_byte_level,
                vocab,
                merges,
                merges_are_json=True,
                specials=[b"", b"a"],
            )
    for specials in ([], [(1 << 31, b"x", b"x")], [(-1, b"x", b"x")], [(0, b"", b"")]):
        call(
            "write_vocab_json", _native.write_vocab_json, [b"a"], specials, between=b"", colon=b":"
        )
        for size in (0, 1, 3):
            rows = np.full(size, 9, np.uint32)
            call("write_merges", _native.write_merges, [b"a"], rows, specials, as_json=False)


def call_classifier() -> None:
    text = np.frombuffer(b"a few words a few more", np.uint8)
    empty = np.zeros(0, np.uint8)
    good = {"text": text, "documents": empty, "num_good": 0, "passage_bytes": 100}
    good |= {"limit_other": 0, "limit_good": 0}
    changed = ("num_good", "passage_bytes", "limit_other", "limit_good")
    vary("pick_passages", _native.pick_passages, good, changed)
    rows = np.array([0, 0, 5, 1 << 40, 0, 0, 0, 3], np.uint64).view(np.uint8)
    for documents in (rows, rows[:63], None):
        call("pick_passages", _native.pick_passages, text, documents, 1, 100, 0, 0)
    counting = {"partition": 0, "num_partitions": 1, "table_bytes": 1 << 20}
    vary("WordCounter", _native.WordCounter, counting, counting)
    counter = _native.WordCounter(**counting)
    lists = [np.array(ends, np.uint64) for ends in ([], [5, 22], [9, 3], [1 << 63])]
    for ends in lists:
        call("WordCounter", counter.add, text, ends)
    words = counter.list(1)
    for number in NUMBERS:
        call("WordCounter", counter.list, number)
        call("choose_words", _native.choose_words, [words], number)
    call("choose_words", _native.choose_words, [None], 5)
    shape = {"words": words, "bucket": 10, "min_count": 1, "epochs": 1, "first_sum": 1.0}
    vary(
        "ClassifierTrainer", _native.ClassifierTrainer, shape, ("min_count", "epochs", "first_sum")
    )
    vary(
        "ClassifierTrainer",
        _native.ClassifierTrainer,
        shape,
        ("bucket",),
        (0, -1, 3, 1 << 31, 1 << 63),
    )
    trainer = _native.ClassifierTrainer(**shape)
    labels, floats = np.ones(2, np.uint8), np.zeros(3, np.float32)
    for ends, threads in itertools.product(lists, NUMBERS):
        call("ClassifierTrainer", trainer.step, text, ends, labels, (1.0, 1.0), 0.1, threads)
        call("ClassifierTrainer", trainer.score, text, ends, threads)
    call("ClassifierTrainer", trainer.step, text, lists[1], labels, (1.0, 1.0), float("nan"), 1)
    call("ClassifierTrainer", trainer.restore, floats, floats)
    for number in (-1, 1 << 30, 1 << 70):
        call("ClassifierTrainer", trainer.write, number, (1, 1))


def call_corpus() -> None:
    options = _native.CleanOptions()
    for name in ("min_line_chars", "max_line_chars", "max_document_chars", "min_dedup_chars"):
        for number in NUMBERS:
            call("clean_block", setattr, options, name, number)
    for presets, limits in itertools.product(([0], [6], [1 << 40], None), ([], [1.0] * 9)):
        call("clean_block", options.set_rules, presets, limits)
    for path in ("", "a\0b", "/", "/dev/null", None, 5):
        call("FastTextModel", _native.FastTextModel, path)
    for label in NUMBERS:
        call("clean_block", options.set_models, None, [], 0.5, None, label, 0.5)
        call("clean_block", options.set_rank, False, label)
    call_classifier()
    for data in (b"", b"\xff\xfe don't", b"x" * 100_000 + b"-y", None, "text"):
        call("split_words", _native.testing.split_words, data)
    options = _native.CleanOptions()
    empty, one = np.zeros(0, np.uint64), np.ones(1, np.uint64)
    huge = np.full(1, (1 << 64) - 1, np.uint64)
    for begins, ends in itertools.product((empty, one, huge), (empty, one, huge)):
        call(
            "clean_block",
            _native.clean_block,
            b"some text",
            begins,
            ends,
            begins,
            begins,
            begins,
            options,
            bytes,
        )
    for row in itertools.product((0, 5, 1 << 63, -1), repeat=2):
        for separators in ([], [b"", b"t"], [b"t", b"tex"], b"t"):
            call(
                "clean_text",
                _native.clean_text,
                b"some text",
                separators,
                [(0, 0, *row)],
                True,
                True,
                options,
                lambda line: None,
            )
    for data in (b"", b"\n", b'{"text": 1}\n', b"[" * 10_000, b'{"text": "\\ud800', None):
        call("extract_jsonl", _native.extract_jsonl, data, "")
        call("measure_repetition", _native.testing.measure_repetition, data)
        call("scan_line", _native.testing.scan_line, data)
        call("find_bytes", _native.testing.find_bytes, data, b"")
        call("keep_documents", _native.keep_documents, b"text", data or b"x", b"", options)
    rows = np.full(64, 255, np.uint8)
    call("keep_documents", _native.keep_documents, b"text", rows, rows, options)
    hashes = np.full(48, 255, np.uint8)
    for remnants in ([], [0], [1 << 63], [-1], [(1 << 64) - 1], [5, 5, 0]):
        call("pick_hashes", _native.pick_hashes, hashes, rows, remnants, False)
        call("pick_hashes", _native.pick_hashes, hashes, b"", remnants, True)
        call("pick_hashes", _native.pick_hashes, hashes[1:], rows, remnants, False)
    for counts in ([], [3], [2], [4], [(1 << 32) - 1, 4]):
        given = np.array(counts, np.uint32).view(np.uint8)
        call("pick_rows", _native.pick_rows, hashes, given, 0, 1 << 16)
        call("pick_rows", _native.pick_rows, hashes, given[1:], 0, 1 << 16)
    for first, last in itertools.product(NUMBERS, NUMBERS):
        call(
            "pick_rows",
            _native.pick_rows,
            hashes,
            np.array([3], np.uint32).view(np.uint8),
            first,
            last,
        )
    vary(
        "DuplicateFinder", _native.DuplicateFinder, {"capacity": 9, "skipped_bits": 0},
        ("skipped_bits",),
    )  # fmt: skip
    for capacity in NUMBERS:
        finder = call("DuplicateFinder", _native.DuplicateFinder, capacity)
        if finder is not None:
            hashes = np.zeros(32, np.uint8)
            vary(
                "DuplicateFinder",
                finder.add,
                {"rows": hashes, "pass_index": 0, "num_passes": 1},
                ("pass_index", "num_passes"),
            )
            call("DuplicateFinder", finder.add, hashes[1:], 0, 1)
            finder.take()
            for counts in ([], [2], [1], [1, 1], [3], [(1 << 32) - 1, 2]):
                given = np.array(counts, np.uint32).view(np.uint8)
                vary(
                    "DuplicateFinder",
                    finder.add_blocks,
                    {"rows": hashes, "counts": given, "first_block": 0, "pass_index": 0,
                     "num_passes": 1},
                    ("first_block", "pass_index", "num_passes"),
                )  # fmt: skip
            call("DuplicateFinder", finder.add_blocks, hashes, b"x", 0, 0, 1)
            call("DuplicateFinder", finder.add_in_turn, 0, hashes[1:])
            call("DuplicateFinder", finder.add_in_turn, 0, hashes)
            finder.stop()
            for place in NUMBERS:
                call("DuplicateFinder", finder.add_in_turn, place, hashes)
    for keep in (True, False, 3, None):
        call("keep_freed_memory", _native.keep_freed_memory, keep)


def call_work_index(folder: Path) -> None:
    """Files that are no work files of ids, and whole ones whose header says what is not there."""
    path = folder / "damaged.ids"
    heads = [b"{}", b'{"sections": {}}', b'{"sections": {"index": [0, 32], "ids": [64, 8]}}']
    heads += [head.replace(b"32", number) for head in heads[2:] for number in (b"-1", b"9" * 30)]
    heads += [heads[2][:length] for length in range(0, len(heads[2]), 5)]
    for head in heads:
        for size in (len(head), 0, 1 << 40, (1 << 64) - 1):
            path.write_bytes(b"LTWORK01" + struct.pack("<Q16x", size) + head + bytes(96))
            call_work_file(path)
    path.write_bytes(b"LTWORK0")
    call_work_file(path)
    call_work_file(folder / "none.ids")


def call_writing(folder: Path) -> None:
    names = {"partial": os.fsencode(folder / ".w"), "path": os.fsencode(folder / "w")}
    good = {**names, "head": b"head", "sections": [b"one", b"", b"two"], "alignment": 8}
    vary("write_work_file", _native.write_work_file, good, ("alignment",))
    for path in (b"", b"\0", os.fsencode(folder), os.fsencode(folder / "none" / "w")):
        call("write_work_file", _native.write_work_file, **{**good, "path": path})
        call("write_work_file", _native.write_work_file, **{**good, "partial": path})
    pages = {"file": -1, "page": 0, "end": 1, "num_bytes": 9, "page_bytes": 8}
    vary("find_damaged_page", _native.find_damaged_page, pages, tuple(pages))
    stretch = {"file": -1, "offset": 0, "size": 1}
    vary("start_writeback", _native.start_writeback, stretch, ("file", "offset", "size"))
    call_flushes(folder / "flushed")


def call_flushes(path: Path) -> None:
    path.write_bytes(b"a")
    name = str(path).encode()
    for paths in ([], [name], [name, b"nowhere", b""], [b"a\0b"], [str(path.parent).encode()]):
        call("flush_files", _native.flush_files, paths, 2)
    for num_threads in NUMBERS:
        if num_threads not in (1, 3):
            call("flush_files", _native.flush_files, [name], num_threads)
    call("flush_files", _native.flush_files, ["text"], 1)


def call_work_file(path: Path) -> None:
    name = [os.fsencode(path)]
    call("RangeCounter", _native.RangeCounter([0], 0).add_files, name)
    places = {"low": 0, "high": (1 << 64) - 1, "val": None, "val_limit": 0}
    good = {"paths": name, "id_bytes": 2, **places}
    vary("RangeRows", _native.RangeRows().add_files, good, ("id_bytes", "low", "high"))


def call_long_rows(folder: Path) -> None:
    for data in (b"", b"{", b'{"text": "low"}', b'{"text": "' + b"x" * 100_000, b"[" * 100_000):
        row, text = folder / "row", folder / "row-text"
        row.write_bytes(data)
        with row.open("rb") as given, text.open("w+b") as taken:
            for first, second in (
                (given.fileno(), taken.fileno()),
                (-1, taken.fileno()),
                (given.fileno(), -1),
                (9999, 9999),
                (1 << 40, 0),
            ):
                call("extract_long_row", _native.extract_long_row, first, "text", second)
                for begin, size in ((0, len(data)), (3, 1 << 40), (-1, 5), (0, -1)):
                    call("unpack_snappy", _native.unpack_snappy, first, begin, size, second)


def call_near_copies(folder: Path) -> None:
    good: dict[str, Any] = {"threshold": 0.8, "ngram": 5, "bands": 13, "rows": 6}
    vary("NearSigner", _native.NearSigner, good, good)
    signer = _native.NearSigner(**good)
    vary("GramSets", _native.GramSets, {"ngram": 5}, ("ngram",))
    sets = _native.GramSets(5)
    document = np.array([0, 0, 0, 4, 0, 0, 0, 3], np.uint64)
    place = np.zeros(2, np.uint64).view(np.uint8)
    for number in (0, 4, 5, 1 << 63, (1 << 64) - 1):
        for field in (2, 3, 6, 7):
            row = document.copy()
            row[field] = number
            call("NearSigner", signer.sign, b"text", row.view(np.uint8))
            call("GramSets", sets.make, b"text", row.view(np.uint8), 0, place, number)
        wanted = np.array([number, 0], np.uint64).view(np.uint8)
        call("GramSets", sets.make, b"text", document.view(np.uint8), 0, wanted, 0)
    call("NearSigner", signer.sign, b"text", document.view(np.uint8)[1:])
    for capacity in NUMBERS:
        held = call("BucketRows", _native.BucketRows, capacity)
        if held is not None:
            row = {"rows": np.full(32, 255, np.uint8), "block": 0, "first": 0}
            vary("BucketRows", held.add, row, ("block", "first"))
            call("BucketRows", held.add, np.zeros(17, np.uint8), 0, 0)
            call("BucketRows", held.sort)
    for rows, most in itertools.product((np.zeros(48, np.uint8), b"x", b""), NUMBERS):
        buckets = _native.NearBuckets()
        call("NearBuckets", buckets.add, rows, most)
        call("NearBuckets", buckets.sort)
        call("NearBuckets", buckets.finish)
    for text, item in itertools.product((b"", b"a b c d e f g h i", "text", None), NUMBERS):
        grams = _native.EvalGrams()
        call("EvalGrams", grams.add, text, item)
        call("EvalGrams", grams.scan, b"text", document.view(np.uint8))
        call("EvalGrams", grams.finish)
        for number in (0, 5, 1 << 63):
            row = document.copy()
            row[3] = number
            call("EvalGrams", grams.scan, b"a b c d e f g h i", row.view(np.uint8))
        call("EvalGrams", grams.scan, b"text", b"x")
    call_near_files(folder)
    left = np.array([0, 9, 3], np.uint32).view(np.uint8)
    for hashes, rows in ((np.full(48, 255, np.uint8), left), (b"", left), (left, b"x"), (b"", b"")):
        call("leave_out", _native.leave_out, hashes, rows)


def call_near_files(folder: Path) -> None:
    path, out = folder / "rows", folder / "out"
    np.zeros(100, np.uint64).tofile(path)
    out.write_bytes(b"")
    for name in ("PairMerger", "PlaceMerger", "BucketMerger"):
        merger = getattr(_native, name)
        for offset, rows in itertools.product((0, 8, 1 << 40, 1 << 63, -1), (0, 2, 99, 1 << 50)):
            made = call(name, merger, [(path, offset, rows)], 1 << 10)
            if made is not None:
                call(name, made.read, 1 << 20)
        vary(name, merger, {"runs": [(path, 0, 2)], "buffer_bytes": 64}, ("buffer_bytes",))
    pair = np.array([1, 0], np.uint64).view(np.uint8)
    for first, offset, rows in itertools.product((0, 1, 1 << 63), (0, 1 << 40), (0, 2, 1 << 50)):
        file = (first, path, offset, rows, 0)
        decider = call("NearDecider", _native.NearDecider, [file], 0.8, 0, out)
        if decider is not None:
            for pairs in (pair, np.zeros(2, np.uint64).view(np.uint8), pair[1:], b""):
                call("NearDecider", decider.add, pairs)
            call("NearDecider", decider.finish)
    call("NearDecider", _native.NearDecider, [], 0.8, 0, folder / "nowhere" / "out")


def call_dataset(folder: Path) -> None:
    codes = np.array([1, 0xFFFFFFFF], np.uint32)
    for ids, unknown in itertools.product((codes, codes[:1]), NUMBERS):
        call("CharacterTable", _native.CharacterTable, codes, ids, unknown)
    table = _native.CharacterTable(codes, codes, 0)
    good = {
        "shuffle": True,
        "seed": 0,
        "block": 0,
        "carried": None,
        "end_id": -1,
        "id_bytes": 4,
    }
    options = _native.CleanOptions()
    cleaned = _native.clean_text(b"some text", [], [(0, 0, 0, 9)], False, False, options, bytes)
    for number, name in itertools.product(NUMBERS, ("seed", "block", "end_id", "id_bytes")):
        call(
            "encode_block",
            _native.encode_block,
            table,
            cleaned.text,
            cleaned.documents,
            b"",
            options,
            **{**good, name: number},
        )
    answers = (
        lambda _: np.array([1], np.uint32),
        lambda _: np.array([1 << 31], np.uint32),
        lambda _: [1],
        lambda _: None,
        lambda: None,
        lambda text: text[99],
    )
    for answer, size in itertools.product(answers, NUMBERS):
        coder = call("CalledCoder", _native.CalledCoder, answer, size)
        if coder is not None:
            texts = (cleaned.text, cleaned.documents, b"", options)
            call("CalledCoder", _native.encode_block, coder, *texts, **good)
    for seed in NUMBERS:
        call("shuffle_key", _native.testing.shuffle_key, seed, seed, seed)
        call("measure_ids", _native.measure_ids, np.zeros(8, np.uint8), seed)
        call("RangeCounter", _native.RangeCounter, [seed], seed)
        call("sort_rows", _native.sort_rows, np.zeros(64, np.uint8), seed, seed)
    call("measure_ids", _native.measure_ids, np.zeros(7, np.uint8), 4)
    for size in (0, 3, 4, 31, 32):
        call("sort_rows", _native.sort_rows, np.ones(size, np.uint8), 5, 0)
        call("sort_places", _native.sort_places, np.ones(size, np.uint8))
        for page_bytes in (0, 1, 7, 16, 4096, 1 << 63, (1 << 64) - 1):
            call("sum_pages", _native.sum_pages, np.ones(size, np.uint8), page_bytes)
    row = np.array([5, 0, 3, 1], np.uint64).view(np.uint8)
    for bounds in ([], [0], [9, 0], [7]):
        counter = call("RangeCounter", _native.RangeCounter, bounds, 0)
        if counter is not None:
            vary("RangeCounter", counter.view_tokens, {"split": 0}, ("split",))
            call("RangeCounter", counter.add, row)
            call("RangeCounter", counter.add, row[8:])
    path = folder / "block"
    path.write_bytes(b"\1\0\2\0\3\0")
    rows = _native.RangeRows()
    good = {
        "path": os.fsencode(path),
        "index": row,
        "ids_at": 0,
        "id_bytes": 2,
        "low": 0,
        "high": (1 << 64) - 1,
        "val": None,
        "val_limit": 0,
    }
    vary("RangeRows", _native.RangeRows().add, good, ("ids_at", "id_bytes", "low", "high"))
    held = {"ids": np.zeros(6, np.uint8), "index": row, "id_bytes": 2, "low": 0, "high": 9}
    vary("RangeRows", _native.RangeRows().add_held, held, ("id_bytes", "low", "high"))
    call("RangeRows", _native.RangeRows().add_held, **{**held, "ids": np.zeros(5, np.uint8)})
    for tokens in (1 << 63, (1 << 64) - 1):
        damaged = _native.RangeRows()
        index = np.array([5, 0, tokens, 1], np.uint64).view(np.uint8)
        damaged.add(**{**good, "index": np.concatenate([index, index])})
        call("RangeRows", damaged.finish)
    call_work_index(folder)
    call_writing(folder)
    rows.add(**good)
    rows.finish()
    reader = {"range": rows, "id_bytes": 2, "max_open_files": 1}
    vary("RangeReader", _native.RangeReader, reader, ("id_bytes", "max_open_files"))
    opened = _native.RangeReader(**reader)
    place = {"first": 0, "last": 3, "id_bytes": 2}
    vary("RangeReader", opened.read, place, ("first", "last", "id_bytes"))


def call_loader(folder: Path) -> None:
    ids, documents = folder / "s.bin", folder / "s.docs"
    np.arange(100, dtype=np.uint16).tofile(ids)
    shard = [str(ids), 0, 100, str(documents), 3, False]
    options = {"item_bytes": 2, "id_limit": 1000, "max_open_files": 1}
    for place, number in itertools.product((1, 2, 4), NUMBERS):
        row = tuple(number if index == place else value for index, value in enumerate(shard))
        stream = call("TokenStream", _native.TokenStream, [row], **options)
        if stream is not None:
            call("TokenStream", stream.read, 0, np.zeros(4, np.uint16))
            starts = np.zeros(1, np.uint64)
            call("TokenStream", stream.align_to_documents, starts, 5)
    vary("TokenStream", _native.TokenStream, {"shards": [tuple(shard)], **options}, options)
    starts = np.array([1], np.uint64)
    segments = np.zeros((1, 50), np.int32)
    for ends in (
        [5, 9, 100],
        [9, 5, 100],
        [5, 1 << 63, 9],
        [(1 << 64) - 1] * 3,
        [5, 200, 300],
        [5],
    ):
        np.array(ends, np.uint64).tofile(documents)
        stream = _native.TokenStream([tuple(shard)], **options)
        call("TokenStream", stream.segments, starts, None, segments, segments.copy())
        for reach in NUMBERS:
            call("TokenStream", stream.align_to_documents, starts.copy(), reach)
    for first in NUMBERS:
        call("TokenStream", stream.read, first, np.zeros(4, np.int64))
        if 0 <= first < 1 << 64:
            at = np.array([first], np.uint64)
            rows = np.zeros((1, 8), np.int64)
            call("TokenStream", stream.gather, at, None, rows, rows.copy())
            call("TokenStream", stream.gather, starts, at, rows, rows.copy())
            call("TokenStream", stream.gather, starts, None, rows, np.zeros((1, 4), np.int64))
            call("TokenStream", stream.segments, at, None, segments, segments.copy())
            call("TokenStream", stream.align_to_documents, at, 5)
    out = np.zeros(3, np.uint64)
    for name in ("shuffled_indices", "random_indices"):
        good = {"seed": 0, "size": 10, "first": 0, "out": out}
        vary(name, getattr(_native, name), good, ("seed", "size", "first"), positional=True)
    for weights in ([], [0], [-1], [1 << 41], [1, 2]):
        schedule = call("MixtureSchedule", _native.MixtureSchedule, weights)
        for first in NUMBERS:
            if schedule is not None:
                place = np.zeros(4, np.uint32)
                call("MixtureSchedule", schedule.slots, first, place, out[: len(weights)])
                call("MixtureSchedule", schedule.slots, first, place, out)
    good = {"num_rows": 1, "length": 1, "item_bytes": 2, "is_signed": True}
    vary(
        "empty_rows",
        _native.empty_rows,
        good,
        ("num_rows", "length", "item_bytes"),
        (n for n in NUMBERS if n != 1 << 31),
        positional=True,
    )
    good = {"indices": np.array([1, 2]), "num_windows": 3, "stride": 4, "last_start": 9}
    fields = ("num_windows", "stride", "last_start")
    vary("window_starts", _native.window_starts, good, fields, positional=True)
    call("window_starts", _native.window_starts, np.array([-1]), 3, 4, 9)


def call_model() -> None:
    room = np.zeros(4096, np.float32)
    targets = np.zeros(64, np.int64)
    at = room.ctypes.data
    sizes = ("num_rows", "width", "num_threads")
    plain: dict[str, tuple[int, tuple[str, ...]]] = {
        "swiglu": (2, sizes),
        "swiglu_backward": (3, sizes),
        "gelu": (2, ("size", "num_threads")),
        "gelu_backward": (3, ("size", "num_threads")),
    }
    # Sizes that no memory has are told by their product; those in between are the caller's word.
    numbers = (0, -1, 1 << 63, (1 << 64) - 1, 1 << 70)
    for name, (addresses, fields) in plain.items():
        good = {f"address{i}": at for i in range(addresses)} | dict.fromkeys(fields, 2)
        function = getattr(_native, name)
        vary(name, function, good, fields, numbers, positional=True)
        vary(name, function, good, ("address0",), (0, -1), positional=True)
    good = {"x": at, "weight": at, "eps": 1e-6, "y": at, "scales": at} | dict.fromkeys(sizes, 2)
    vary("rms_norm", _native.rms_norm, good, sizes, numbers, positional=True)
    vary("rms_norm", _native.rms_norm, good, ("x", "weight", "y", "scales"), (0,), positional=True)
    good = {f"address{i}": at for i in range(6)} | dict.fromkeys(sizes, 2)
    vary("rms_norm_backward", _native.rms_norm_backward, good, sizes, numbers, positional=True)
    good = {"logits": at, "targets": targets.ctypes.data} | dict.fromkeys(sizes, 2)
    vary(
        "cross_entropy",
        _native.cross_entropy,
        good,
        ("width", "num_threads"),
        numbers,
        positional=True,
    )
    vary("cross_entropy", _native.cross_entropy, good, ("logits", "targets"), (0,), positional=True)
    for shape in (
        [2, 2, 1, 1, 3],
        [1 << 62, 8, 1, 1, 2],
        [2, 2, 1 << 40, 1, 2],
        [2, 2, 1, -1, 2],
        [1],
    ):
        call("turn_heads", _native.turn_heads, at, [at] * 4, 1e-6, shape, [at] * 3, 1)
        for first in (0, at):
            call(
                "turn_heads_backward",
                _native.turn_heads_backward,
                [first] * 3,
                [1] * 9,
                at,
                [at] * 4,
                1e-6,
                shape,
                at,
                at,
                0,
                1,
            )
    call("turn_heads", _native.turn_heads, 0, [at] * 4, 1e-6, [1, 1, 1, 1, 2], [at] * 3, 1)
    call_packed(at, numbers)
    call_products(at)
    call_decoder(at)


def call_products(at: int) -> None:
    call("multiply", _native.multiply, at, at, 0, [1] * 9, [2] * 4, False, 1, 128)
    for place, number in itertools.product(range(4), (1 << 62, -1)):
        sizes = [number if place == i else 8 for i in range(4)]
        call("multiply", _native.multiply, at, at, at, [1] * 9, sizes, False, 1, 128)
    call("multiply", _native.multiply, at, at, at, [1] * 9, [1 << 22] * 4, False, 1, 128)
    call("multiply", _native.multiply, at, at, at, [2] * 9, [2] * 4, False, 1, 128)
    call("multiply", _native.multiply, at, at, at, [1] * 9, [1], False, 1, 128)
    for num_threads, bits in ((0, 128), (1 << 40, 128), (1, 0), (1, 127), (1, 1 << 20)):
        call("multiply", _native.multiply, at, at, at, [1] * 9, [2] * 4, True, num_threads, bits)
    good = [1, 2, 2, 2, 1, 4, 0]
    for place, number in itertools.product(range(len(good)), (*FEW, 1 << 40)):
        sizes = [*good[:place], number, *good[place + 1 :]]
        call("attention_room_bytes", _native.attention_room_bytes, sizes, True)
        if number in (0, 1):
            continue  # right, or the caller's word for what its tensors hold
        call("attend", _native.attend, [0] * 3, [1] * 9, sizes, 0, 0, 1, 128)
    for sizes, tensors in itertools.product((good, [1, 4, 2, 2, 1, 4, 0]), ([0] * 3, [at] * 2)):
        call("attend", _native.attend, tensors, [1] * 9, sizes, at, at, 1, 128)
        call(
            "attend_backward",
            _native.attend_backward,
            *(at, [1] * 3, tensors, [1] * 9, sizes, at, at, [at] * 3, 1, 128),
        )
    for num_threads, bits in ((0, 128), (1, 64)):
        call("attend", _native.attend, [at] * 3, [1] * 9, good, at, at, num_threads, bits)


def call_decoder(at: int) -> None:
    sizes = [8, 4, 2, 1, 2, 4, 4, 0, 0, 0, 1, 1]
    layer = [at] * 12 + [0] * 8
    kinds = [0] * 20
    for place, number in itertools.product(range(len(sizes)), (*FEW, 1 << 40)):
        changed = [*sizes[:place], number, *sizes[place + 1 :]]
        call("Decoder", _native.Decoder, changed, 1e-6, 0.0, [layer], [kinds], [0])
    for layers in ([[0] * 20], [[at] * 19], [layer, [at] * 20], [[at] * 17 + [at, 0, 0]]):
        call(
            "Decoder",
            _native.Decoder,
            sizes,
            1e-6,
            0.0,
            layers,
            [kinds] * len(layers),
            [0] * len(layers),
        )
    call("Decoder", _native.Decoder, sizes, 1e-6, 0.0, [layer], [kinds], [])
    for wrong_kinds in ([], [[]], [[3] * 20], [[1] * 20], [[-1] * 20], [[0] * 21]):
        call("Decoder", _native.Decoder, sizes, 1e-6, 0.0, [layer], wrong_kinds, [0])
    decoder = _native.Decoder(sizes, 1e-6, 0.0, [layer], [kinds], [0])
    one = np.zeros(1, np.int64)
    good: dict[str, Any] = {
        "tables": [at, at, 0, at, 0, at, at],
        "kinds": [0, 0],
        "num_positions": 4,
        "keys": [at],
        "values": [at],
        "num_rows": 2,
        "capacity": 4,
        "ids": one,
        "positions": one,
        "slots": one,
        "logits": at,
        "num_logits": 1,
        "is_prompt": False,
        "num_threads": 1,
        "before_layer": None,
    }
    for is_prompt in (False, True):
        call("Decoder.step", decoder.step, *{**good, "is_prompt": is_prompt}.values())
    good["is_prompt"] = True
    fields = ("num_positions", "num_rows", "capacity", "num_logits", "num_threads")
    vary("Decoder.step", decoder.step, good, fields, FEW, positional=True)
    vary("Decoder.step", decoder.step, good, ("logits",), (0, -1), positional=True)
    for field, number in itertools.product(("ids", "positions", "slots"), (-1, 99, 1 << 62)):
        wrong = {**good, field: np.array([number])}
        call("Decoder.step", decoder.step, *wrong.values())
    for field, value in (
        ("tables", [0] * 7),
        ("tables", [at] * 6 + [0]),
        ("kinds", [3, 0]),
        ("kinds", [0]),
        ("keys", []),
        ("values", [0]),
        ("ids", np.zeros(2, np.int64)),
        ("ids", np.zeros(0, np.int64)),
    ):
        call("Decoder.step", decoder.step, *{**good, field: value}.values())


def call_packed(at: int, numbers: tuple[int, ...]) -> None:
    good: dict[str, Any] = {
        "states": [at] * 6,
        "gradients": at,
        "numbers": [0.5] * 9,
        "seed": 1,
        "position": 0,
        "size": 128,
        "num_threads": 1,
    }
    step = _native.adamw_packed
    vary("adamw_packed", step, good, ("size", "num_threads"), (*numbers, 127), positional=True)
    vary("adamw_packed", step, good, ("gradients", "seed"), (0, -1, 1 << 70), positional=True)
    for states in ([0] * 6, [at] * 5, [-1] * 6):
        call("adamw_packed", step, states, at, [0.5] * 9, 1, 0, 128, 1)
    good = {"codes": at, "scales": at, "gradients": at, "numbers": [0.5] * 3}
    good |= {"size": 128, "num_threads": 1}
    momentum = _native.momentum_packed
    vary(
        "momentum_packed", momentum, good, ("size", "num_threads"), (*numbers, 127), positional=True
    )
    vary("momentum_packed", momentum, good, ("codes", "scales", "gradients"), (0,), positional=True)
    good = {"weights": at, "rests": at, "steps": at, "numbers": [0.5] * 2, "cautious": True}
    good |= {"seed": 1, "position": 0, "size": 2, "num_threads": 1}
    move = _native.move_packed
    vary("move_packed", move, good, ("size", "num_threads"), numbers, positional=True)
    vary("move_packed", move, good, ("weights", "rests", "steps"), (0,), positional=True)
    good = {"values": at, "weights": at, "rests": at, "size": 2, "num_threads": 1}
    pack = _native.pack_weights
    vary("pack_weights", pack, good, ("size", "num_threads"), numbers, positional=True)
    vary("pack_weights", pack, good, ("values", "weights", "rests"), (0,), positional=True)
    good = {"weights": at, "rests": at, "out": at, "size": 2, "num_threads": 1}
    unpack = _native.unpack_weights
    vary("unpack_weights", unpack, good, ("size", "num_threads"), numbers, positional=True)
    vary("unpack_weights", unpack, good, ("weights", "rests", "out"), (0,), positional=True)
    vary("Twister", _native.Twister, {"seed": 1}, ("seed",))
    twister = _native.Twister(1)
    vary("Twister", twister.skip, {"count": 1}, ("count",))
    for out in (np.empty(0, np.float32), np.empty(3), np.empty((2, 2), np.float32), None, b"1234"):
        call("Twister", twister.fill, out)


def main() -> None:
    folder = Path(sys.argv[1])
    # What would be asked for in earnest fails here, and does not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    call_tokenizer(folder)
    call_pieces()
    call_vocabulary_files()
    call_corpus()
    call_long_rows(folder)
    call_near_copies(folder)
    call_dataset(folder)
    call_loader(folder)
    call_model()
    for name in sorted({*results, *errors}):
        print(name, results[name], errors[name])


if __name__ == "__main__":
    main()
