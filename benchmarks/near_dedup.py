"""Compare what `--near-dedup` finds with exact all-pairs similarity, and measure what it costs.

    python benchmarks/near_dedup.py --documents 20000 enwiki.txt python_code.txt

Documents are passages of the given files, so near copies among them are real ones, and a quarter is
generated: passages with words replaced, removed or inserted, truncated, or joined. Every pair of
documents is decided exactly by sets of n-grams (an inverted index of each document's rarest ones
misses no pair that reaches the threshold), with words as the program splits them, unhashed. Prints
the share of those pairs of which at least one was removed, by similarity; removals whose similarity
is wrong or too low; and the processor time of preparing with and without near copies.

`--peer-python` is an interpreter that has datatrove[processing] with spaCy and orjson, in a
separate environment: its MinHash, with 5-grams and its own 14 buckets of 8, then removes from the
same documents, and is compared with the same pairs. It compares text in lower case without marks,
with all numbers 0, so that pairs which differ here may be equal there.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import math
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SEPARATOR = "<|endoftext|>"
REAL_WORD = 2
GRAM = 5


def read_passages(paths: list[Path], wanted: int, chooser: random.Random) -> list[str]:
    """Passages of 60 to 600 words, from all over the files, in equal numbers."""
    passages: list[str] = []
    for path in paths:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
        lines = [line for line in text.split("\n") if len(line) > 30]
        for _ in range(wanted // len(paths)):
            at, words = chooser.randrange(len(lines)), chooser.randrange(60, 600)
            taken: list[str] = []
            while sum(line.count(" ") + 1 for line in taken) < words and at < len(lines):
                taken.append(lines[at].replace(SEPARATOR, ""))
                at += 1
            passages.append("\n".join(taken))
    return passages


def make_copy(text: str, others: list[str], chooser: random.Random) -> str:
    """A copy as in crawls: some words edited, truncated, or with another text's end."""
    words = text.split(" ")
    kind = chooser.choice(("replace", "replace", "remove", "insert", "cut", "append"))
    if kind == "cut":
        return " ".join(words[: max(int(len(words) * chooser.uniform(0.6, 1)), 6)])
    if kind == "append":
        more = chooser.choice(others).split(" ")
        return " ".join(words + more[: int(len(words) * chooser.uniform(0, 0.3))])
    for _ in range(chooser.randrange(0, max(len(words) // 15, 2))):
        at = chooser.randrange(len(words))
        new = [] if kind == "remove" else [f"new{chooser.randrange(10**6)}"]
        words[at : at + (kind != "insert")] = new
    return " ".join(words)


def gram_set(text: str) -> frozenset[tuple[str, ...]]:
    """The n-grams of a document, as words."""
    from lowtide import _native  # the peer's environment has none

    data = text.encode()
    rows = _native.testing.split_words(data)
    ends = [*(begin for begin, _, _ in rows[1:]), len(data)]
    words = [
        data[begin:end].decode()[:chars]
        for (begin, chars, facts), end in zip(rows, ends, strict=False)
        if facts & REAL_WORD
    ]
    if not words:
        return frozenset()
    return frozenset(tuple(words[at : at + GRAM]) for at in range(max(len(words) - GRAM + 1, 1)))


def find_pairs(
    sets: list[frozenset[tuple[str, ...]]], threshold: float
) -> dict[tuple[int, int], float]:
    """All pairs whose similarity reaches the threshold: they share one of their rarest n-grams."""
    counts = collections.Counter(gram for grams in sets for gram in grams)
    index: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    found: dict[tuple[int, int], float] = {}
    for number, grams in enumerate(sets):
        rarest = sorted(grams, key=lambda gram: (counts[gram], gram))
        prefix = rarest[: len(grams) - math.ceil(threshold * len(grams)) + 1]
        for other in {other for gram in prefix for other in index[gram]}:
            common = len(grams & sets[other])
            similarity = common / (len(grams) + len(sets[other]) - common)
            if similarity >= threshold:
                found[other, number] = similarity
        for gram in prefix:
            index[gram].append(number)
    return found


def prepare(path: Path, out_dir: Path, threshold: float) -> float:
    """Prepare with one worker in 256 MiB; return the processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = (
        f"prepare --input-files {path} --out-dir {out_dir} --near-dedup {threshold} --processes 1"
    )
    more = "--memory 256MiB --no-dedup --no-normalize --no-filter"
    command = [sys.executable, "-m", "lowtide", *words.split(), *more.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report_found(pairs: dict[tuple[int, int], float], gone: set[int]) -> None:
    """Print the pairs of which one was removed, by similarity."""
    print("| similarity | pairs | found | share |\n|---|---|---|---|")
    for low, high in ((0.8, 0.85), (0.85, 0.9), (0.9, 0.95), (0.95, 1.01), (0.0, 1.01)):
        rows = [pair for pair, similarity in pairs.items() if low <= similarity < high]
        found = sum(bool(gone & set(pair)) for pair in rows)
        name = f"{low:.2f} to {min(high, 1):.2f}" if low else "all"
        print(f"| {name} | {len(rows):,} | {found:,} | {100 * found / max(len(rows), 1):.2f} % |")


def report(
    pairs: dict[tuple[int, int], float],
    log: list[tuple[int, int, float]],
    sets: list[frozenset[tuple[str, ...]]],
) -> None:
    """Print what was found, missed and wrongly removed."""
    gone = {removed for _, removed, _ in log}
    report_found(pairs, gone)
    wrong = 0
    for kept, removed, similarity in log:
        common = len(sets[kept] & sets[removed])
        exact = common / (len(sets[kept]) + len(sets[removed]) - common)
        wrong += abs(exact - similarity) > 1e-6 or kept in gone
    below = len(gone - {number for pair in pairs for number in pair})
    print(f"removed: {len(gone):,} documents; without any pair at the threshold: {below}; with a "
          f"similarity that is not theirs, or for one that went too: {wrong}")  # fmt: skip


def remove_theirs(folder: Path) -> None:
    """Remove near copies as datatrove does; runs in the peer's environment."""
    from datatrove.executor import LocalPipelineExecutor  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.dedup import (  # pyright: ignore[reportMissingImports]
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import (  # pyright: ignore[reportMissingImports]
        MinhashConfig,
    )
    from datatrove.pipeline.readers import JsonlReader  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.writers import JsonlWriter  # pyright: ignore[reportMissingImports]
    from datatrove.utils.typeshelper import Languages  # pyright: ignore[reportMissingImports]

    config = MinhashConfig()
    parts = {name: str(folder / name) for name in ("signatures", "buckets", "removed", "kept")}
    read = JsonlReader(str(folder / "texts"), glob_pattern="*.jsonl")
    sign = MinhashDedupSignature(parts["signatures"], config=config, language=Languages.english)
    bucket = MinhashDedupBuckets(parts["signatures"], parts["buckets"], config=config)
    cluster = MinhashDedupCluster(parts["buckets"], parts["removed"], config=config)
    take_out = MinhashDedupFilter(parts["removed"])
    write = JsonlWriter(parts["kept"], compression=None)
    for tasks, steps in (
        (1, [read, sign]),
        (config.num_buckets, [bucket]),
        (1, [cluster]),
        (1, [read, take_out, write]),
    ):
        logs = str(folder / f"logs_{type(steps[-1]).__name__}")
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=logs).run()


def report_theirs(
    python: str, folder: Path, texts: list[str], pairs: dict[tuple[int, int], float]
) -> None:
    """Print what datatrove finds among the same documents."""
    (folder / "texts").mkdir()
    with (folder / "texts/texts.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts)
        )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [python, __file__, "--remove", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    kept = {
        int(json.loads(row)["id"]) for path in (folder / "kept").iterdir() for row in path.open()
    }
    gone = set(range(len(texts))) - kept
    print("\ndatatrove:")
    report_found(pairs, gone)
    alike: dict[int, set[int]] = collections.defaultdict(set)
    for one, other in pairs:
        alike[one].add(other), alike[other].add(one)
    below = sum(not alike[number] for number in gone)
    alone = sum(not alike[number] & kept for number in gone)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"removed: {len(gone):,} documents; without any pair at the threshold: {below}; without "
          f"one that stays: {alone}; {seconds:.1f} s of processor time")  # fmt: skip


def main() -> None:
    """Make documents, prepare them, compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path, help="text, plain or .xz")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-python", help="an interpreter that has datatrove")
    arguments = parser.parse_args()
    chooser = random.Random(arguments.seed)
    texts = read_passages(arguments.files, arguments.documents * 3 // 4, chooser)
    originals = list(texts)
    while len(texts) < arguments.documents:
        texts.append(make_copy(chooser.choice(originals), originals, chooser))
    chooser.shuffle(texts)
    with tempfile.TemporaryDirectory() as name:
        folder, starts, at = Path(name), {}, 0
        with (folder / "texts.jsonl").open("w") as file:
            for number, text in enumerate(texts):
                starts[at] = number
                at += file.write(json.dumps({"text": text}) + "\n")
        size = sum(len(text.encode()) for text in texts)
        plain = prepare(folder / "texts.jsonl", folder / "plain", 0)
        near = prepare(folder / "texts.jsonl", folder / "near", arguments.threshold)
        rows = [json.loads(row) for row in (folder / "near/near_duplicates.jsonl").open()]
        facts = json.loads((folder / "near/dataset_metadata.json").read_text())["near_duplicates"]
    log = [(starts[row["kept"][1]], starts[row["removed"][1]], row["similarity"]) for row in rows]
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB; threshold {arguments.threshold}, "
          f"{facts['bands']} bands of {facts['rows']}")  # fmt: skip
    sets = [gram_set(text) for text in texts]
    pairs = find_pairs(sets, arguments.threshold)
    report(pairs, log, sets)
    print(f"{facts['pairs']:,} pairs shared a band, {facts['compared']:,} were compared, "
          f"{facts['unlike']:,} unlike, some by their sizes alone")  # fmt: skip
    print(f"processor time: {plain:.2f} s without, {near:.2f} s with near copies: "
          f"{size / 1e6 / (near - plain):.0f} MB/s for them")  # fmt: skip
    if arguments.peer_python:
        with tempfile.TemporaryDirectory() as name:
            report_theirs(arguments.peer_python, Path(name), texts, pairs)


if __name__ == "__main__":
    remove_theirs(Path(sys.argv[2])) if sys.argv[1:2] == ["--remove"] else main()
