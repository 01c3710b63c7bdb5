"""Random and damaged bytes through native readers, splitters, encoders and cleaners, for a while.

    make fuzz FUZZ_SECONDS=600     (under the address and undefined-behaviour sanitizers)

Each round takes one target and one seed. What must hold whatever the bytes are is checked here;
wrong accesses and overflows end the process. The file named at the start then says which round it
was; `fuzz.py --target NAME --round N` does that round again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lowtide import _native

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_copies import fuzz_items, fuzz_learning, fuzz_near, fuzz_sentencepiece
from fuzz_files import fuzz_counts, fuzz_judges, fuzz_pages, fuzz_ranges

_PARTS = [
    *(b"'", b"'s", b"'RE", b" ", b"  ", b"\n", b"\r\n", b"\t", b"a", b"Word", b"9", b"12345", b"/"),
    *(
        b"\x00",
        b"\x1f",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xc5\xbf",
        b"\xc5",
        b"\xe2\x82\xac",
        b"\xe2\x82",
    ),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xcc\x81", b"\xe4\xb8\xad", b"\xc2\xa0"),
    *(
        b"<|endoftext|>",
        b"<|end",
        b"|>",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\u",
        b"\\",
        b":",
        b",",
        b"e5",
    ),
    *(
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"\xd8\xa7",
        b"\xe0\xa4\xbf",
        b"null",
        b"true",
        b"-1",
        b"1e999",
    ),
]
_LENGTHS = [0, 1, 2, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 400, 3000, 40_000]


def make_text(source: random.Random) -> bytes:
    """Random bytes, random parts, long runs, or a mixture; often about as long as a vector."""
    length = source.choice(_LENGTHS)
    kind = source.randrange(5)
    if kind == 0:
        return source.randbytes(length)
    if kind == 1:
        return source.choice(_PARTS) * (length // 2)
    parts = [source.choice(_PARTS) for _ in range(length // 3 + 1)]
    if kind == 2:
        parts = [source.choice(parts[:5]) for _ in parts]
    if kind == 3:
        parts.insert(source.randrange(len(parts)), source.randbytes(source.randrange(70)))
    return b"".join(parts)[:length]


def damage(data: bytes, source: random.Random) -> bytes:
    """A few bytes changed, taken out, put in or said twice."""
    changed = bytearray(data)
    for _ in range(source.choice([0, 1, 1, 2, 8])):
        at = source.randrange(len(changed) + 1)
        what = source.randrange(4)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << source.randrange(8)
        elif what == 1:
            del changed[at : at + source.choice([1, 5, 1000])]
        elif what == 2:
            changed[at:at] = source.choice(_PARTS)
        else:
            changed[at:at] = changed[at : at + source.randrange(50)]
    return bytes(changed)


def fuzz_splitting(source: random.Random, folder: Path) -> None:
    text, pattern = make_text(source), source.choice(["gpt2", "cl100k", "o200k"])
    ends = _native.split(pattern, text).tolist()
    assert ends == _native.split(pattern, text, "scalar").tolist()
    assert ends == _native.split(pattern, text, "avx2").tolist()
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(text)
    specials = source.sample([b"<|endoftext|>", b"<|", b"a", b"\n", b"\xff"], source.randrange(4))
    cuts = _native.testing.safe_cuts(text, specials).tolist()
    assert all(0 < cut < len(text) for cut in cuts)
    last = _native.last_cut(text, specials)
    assert 0 <= last <= len(text)
    if not specials:
        for cut in cuts[:5]:  # cutting there changes no piece
            halves = [_native.split(pattern, part).tolist() for part in (text[:cut], text[cut:])]
            assert ends == halves[0] + [cut + end for end in halves[1]]


def fuzz_encoding(source: random.Random, folder: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    rows: list[int] = []
    known = {token: id for id, token in enumerate(tokens)}
    for _ in range(source.randrange(200)):
        left, right = source.randrange(len(tokens)), source.randrange(len(tokens))
        whole = tokens[left] + tokens[right]
        if whole not in known and len(whole) < 60:
            known[whole] = len(tokens)
            rows += [left, right, len(tokens)]
            tokens.append(whole)
    specials = [(b"<|endoftext|>", len(tokens))]
    by_rank = source.random() < 0.3
    vocabulary = _native.Vocabulary(
        source.choice(["gpt2", "cl100k", "o200k"]),
        [*tokens, b"<|endoftext|>"],
        None if by_rank else np.array(rows, np.uint32),
        specials,
        whole_pieces=source.random() < 0.5,
        cache_bytes=source.choice([0, 1 << 15, 1 << 20]),
    )
    texts = [make_text(source) for _ in range(source.randrange(1, 6))]
    for special in (True, False):
        ids, ends = vocabulary.encode_many(texts, special, source.randrange(1, 4))
        begin = 0
        for text, end in zip(texts, ends.tolist(), strict=True):
            assert vocabulary.decode(ids[begin:end]) == text
            assert vocabulary.encode(text, special).tolist() == ids[begin:end].tolist()
            begin = end
    path, text = folder / "text", b"".join(texts)
    path.write_bytes(text)
    with (folder / "ids").open("w+b") as out:
        count, position = vocabulary.encode_file(
            input_path=path,
            begin=0,
            stop=len(text),
            end=len(text),
            output_file=out.fileno(),
            output_path="ids",
            output_offset=0,
            id_bytes=4,
            specials=True,
            num_threads=source.randrange(1, 4),
            window_bytes=source.choice([1, 16, 100, 5000]),
        )
        assert position == len(text)
        ids = np.fromfile(out, np.uint32)
    assert len(ids) == count
    assert vocabulary.decode(ids) == text


def fuzz_counting(source: random.Random, folder: Path) -> None:
    for path in folder.glob("*.run"):
        path.unlink()
    counter = _native.PieceCounter(
        "gpt2",
        [b"<|endoftext|>"],
        num_threads=source.randrange(1, 4),
        table_bytes=source.choice([0, 1 << 16, 1 << 22]),
        window_bytes=source.choice([1, 30, 1000, 1 << 16]),
        spill_dir=folder,
    )
    texts = [make_text(source) for _ in range(source.randrange(1, 8))]
    counter.count_texts(texts)
    if source.random() < 0.5:
        counter.checkpoint()
    path = folder / "text"
    path.write_bytes(b"".join(texts))
    size = path.stat().st_size
    assert counter.count_file(path, 0, size, size) == size
    runs = counter.checkpoint()
    if runs and source.random() < 0.5:  # a run file that somebody damaged
        name = Path(source.choice(runs))
        name.write_bytes(damage(name.read_bytes(), source))
    try:
        items = counter.drain()
    except OSError:
        return
    items = [(piece, count % (1 << 40)) for piece, count in items if len(piece) < 1 << 16]
    for kind, option in (
        (_native.MergeLearner, {}),
        (_native.WideMergeLearner, {}),
        (_native.RoundLearner, {"file_dir": str(folder), "memory_bytes": 1 << 26}),
    ):
        learner = kind(source.choice(["huggingface", "cs336"]), **option)
        learner.take_items(items)
        learner.build()
        learner.learn(source.randrange(80), 1000, source.randrange(3))
        learner.merges()


def fuzz_cleaning(source: random.Random, folder: Path) -> None:
    options = _native.CleanOptions()
    options.normalize = source.random() < 0.8
    options.lowercase = source.random() < 0.3
    options.filter = source.random() < 0.6
    options.dedup = source.random() < 0.7
    options.collect_characters = source.random() < 0.3
    options.max_repetition = source.choice([0.0, 0.5, 1.0])
    for name in ("min_line_chars", "max_line_chars", "min_line_words", "min_document_chars"):
        setattr(options, name, source.choice([0, 1, 5, 1000]))
    presets = source.sample(range(len(_native.RULE_PRESETS)), source.randrange(4))
    limits = [source.choice([0.0, 0.5, limit[2]]) for limit in _native.RULE_LIMITS]
    options.set_rules(presets, limits)
    options.mask_kinds = source.choice([0, source.randrange(64)])
    text = b"\n".join(make_text(source) for _ in range(source.randrange(1, 5)))
    separators = source.sample([b"", b"<|endoftext|>", b"\n", b"\r\n", b"a"], source.randrange(3))
    cut = source.randrange(len(text) + 1)
    cleaned = _native.clean_text(
        text,
        separators,
        [(0, 0, 0, cut), (1, 0, cut, len(text))],
        source.random() < 0.3,
        source.random() < 0.3,
        options,
        lambda line: line.decode("utf-8", "replace").encode(),
    )
    finder = _native.DuplicateFinder(source.choice([0, 3, 10_000]))
    if finder.add(cleaned.hashes, 0, 1):
        finder.add(cleaned.hashes, 0, 1)
    removed = finder.take()
    kept = _native.keep_documents(cleaned.text, cleaned.documents, removed, options)
    assert sum(map(len, kept.list_texts())) <= len(cleaned.text) + len(kept.list_texts())
    rows = damage(bytes(cleaned.documents), source)
    rows = np.frombuffer(rows[: len(rows) // 8 * 8], np.uint64).view(np.uint8)
    with contextlib.suppress(ValueError):
        _native.keep_documents(cleaned.text, rows, removed, options).list_texts()
    words = _native.testing.split_words(text)
    assert [begin for begin, _, _ in words] == sorted({begin for begin, _, _ in words})
    for line in text.split(b"\n")[:20]:
        assert _native.testing.scan_line(line, True) == _native.testing.scan_line(line, False)
        assert _native.testing.measure_repetition(line, True) == _native.testing.measure_repetition(
            line, False
        )
        wanted = source.choice(_PARTS)
        assert _native.testing.find_bytes(line, wanted, True) == line.find(wanted)
        assert _native.testing.find_bytes(line, wanted, False) == line.find(wanted)
    table = _native.CharacterTable(np.array([97], np.uint32), np.array([5], np.uint32), 0)
    encoded = _native.encode_block(
        table,
        cleaned.text,
        cleaned.documents,
        removed,
        options,
        shuffle=True,
        seed=source.getrandbits(64),
        block=0,
        carried=None,
        end_id=source.choice([-1, 1]),
        id_bytes=source.choice([2, 4]),
    )
    assert len(encoded.index) % 32 == 0


def fuzz_rows(source: random.Random, folder: Path) -> None:
    values = [make_text(source).decode("utf-8", "replace"), 1, None, [], {"text": "no"}]
    rows = [json.dumps({"id": 1, "text": source.choice(values)}).encode() for _ in range(5)]
    data = damage(b"\n".join(rows), source)
    text, ends, offsets, bad = _native.extract_jsonl(data, "text")
    assert len(ends) == len(offsets)
    assert (int(ends[-1]) if len(ends) else 0) == len(text)
    begin = 0
    for end, offset in zip(ends.tolist(), offsets.tolist(), strict=True):
        line = data[offset:].split(b"\n", 1)[0]
        value = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
        found = bytes(text[begin:end]).decode("utf-8", "replace")
        # Half of a surrogate pair is one character that is none.
        assert found == re.sub(r"[\ud800-\udfff]", "\ufffd", value["text"])
        begin = end
    for offset in bad.tolist():
        assert 0 <= offset < len(data)


_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 2, "content": "<|endoftext|>"}],
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 3, "é": 4},
        "merges": ["a b", ["a", "b"]],
    },
}


def fuzz_vocabulary_files(source: random.Random, folder: Path) -> None:
    text = damage(json.dumps(_TOKENIZER, ensure_ascii=source.random() < 0.5).encode(), source)
    if source.random() < 0.2:
        text = make_text(source)
    places = _native.find_json_sections(text)
    vocab, merges = make_text(source), make_text(source)
    if places is not None:
        vocab = text[places[0] : places[0] + places[1]]
        merges = text[places[2] : places[2] + places[3]]
        json.loads(vocab.decode(errors="replace"))  # whether text is UTF-8 is looked at later
        json.loads(merges.decode(errors="replace"))
    found = _native.read_byte_level(
        damage(vocab, source),
        damage(merges, source),
        merges_are_json=source.random() < 0.7,
        specials=[b"a", b"", b"<|endoftext|>"][: source.randrange(4)],
    )
    if found is not None:
        tokens, ids, rows = found
        assert len(rows) % 3 == 0
        assert all(row < len(tokens) for row in rows)
        _native.write_vocab_json(tokens, [(0, b"x", b'"x"')], between=b",", colon=b":")
        _native.write_merges(tokens, rows, [], as_json=source.random() < 0.5)
        assert all(id < 1 << 24 for id in ids)


def fuzz_loading(source: random.Random, folder: Path) -> None:
    count = source.randrange(1, 400)
    ids = np.array([source.randrange(1000) for _ in range(count)], np.uint16)
    ends = sorted(source.sample(range(1, count + 1), source.randrange(min(count, 60)) + 1))
    shards = []
    for number in range(source.randrange(1, 4)):
        path, documents = folder / f"{number}.bin", folder / f"{number}.docs"
        ids.tofile(path)
        documents.write_bytes(damage(np.array(ends, np.uint64).tobytes(), source))
        known = len(ends) if source.random() < 0.7 else source.randrange(100)
        begins = source.random() < 0.5
        shards.append((path, 0, count - source.randrange(2), documents, known, begins))
    stream = _native.TokenStream(
        shards, item_bytes=2, id_limit=source.choice([10, 1000]), max_open_files=1
    )
    length = source.randrange(1, 60)
    starts = np.array([source.randrange(3 * count) for _ in range(4)], np.uint64)
    rows = np.zeros((4, length), np.int32)
    for call in (
        lambda: stream.gather(starts, None, rows, rows.copy()),
        lambda: stream.segments(starts, None, rows, rows.copy()),
        lambda: stream.align_to_documents(starts, source.choice([0, 5, 1 << 60])),
        lambda: stream.read(source.randrange(count), np.zeros(length, np.int64)),
    ):
        with contextlib.suppress(_native.ReadError, IndexError):
            call()


def _on_files(target: Callable[..., None]) -> Callable[[random.Random, Path], None]:
    def run(source: random.Random, folder: Path) -> None:
        target(source, folder, make_text, damage)

    return run


TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "splitting": fuzz_splitting,
    "encoding": fuzz_encoding,
    "counting": fuzz_counting,
    "cleaning": fuzz_cleaning,
    "rows": fuzz_rows,
    "vocabulary-files": fuzz_vocabulary_files,
    "loading": fuzz_loading,
    "judges": _on_files(fuzz_judges),
    "pages": _on_files(fuzz_pages),
    "counts": _on_files(fuzz_counts),
    "ranges": _on_files(fuzz_ranges),
    "near": _on_files(fuzz_near),
    "items": _on_files(fuzz_items),
    "learning": _on_files(fuzz_learning),
    "sentencepiece": _on_files(fuzz_sentencepiece),
}


def main() -> int:
    """Fuzz until the time is over; the counts of rounds at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--target", choices=[*TARGETS], default=None)
    parser.add_argument("--round", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    names = [options.target] if options.target else [*TARGETS]
    first = options.round if options.round is not None else seed << 24
    rounds: Counter[str] = Counter()
    begin = time.monotonic()
    place = Path(tempfile.gettempdir(), f"lowtide-fuzz-{os.getpid()}")
    print(f"seed {seed}; the round under way is in {place}", flush=True)
    with tempfile.TemporaryDirectory() as folder, place.open("wb", buffering=0) as note:
        for number in itertools.count(first):
            name = names[number % len(names)]
            source = random.Random(f"{name} {number}")
            os.pwrite(note.fileno(), f"--target {name} --round {number}\n".encode().ljust(80), 0)
            try:
                TARGETS[name](source, Path(folder))
            except BaseException:
                print(f"wrong in --target {name} --round {number}", file=sys.stderr, flush=True)
                raise
            rounds[name] += 1
            if options.round is not None or time.monotonic() - begin > options.seconds:
                break
    place.unlink()
    print(f"seed {seed}, {time.monotonic() - begin:.0f} s, {rounds.total()} rounds, nothing wrong")
    for name in names:
        print(f"  {name:18} {rounds[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
