"""Text to shards: speed of lowtide prepare with all steps, against the usual tools.

python benchmarks/prepare.py --text enwiki.txt [--rounds 3] [--sizes] [--large-peer]

The peers only encode (GPT-2's vocabulary, end-of-text between documents, two workers): they do not
clean, filter, deduplicate, shuffle or split. `lowtide encode` is our encoder alone, the speed that
the command `lowtide prepare` is compared with. Each runs in its own process, timed from its start
to its end; its input (the text, as jsonl for datatrove and nanoGPT, the vocabulary in its format)
is written before. `--sizes` also prepares the text 17 times over, to compare peak memory; with
`--large-peer` the fastest peer encodes that too, once, so that the ratio is of one run. The peers
come with `pip install 'lowtide[benchmark]'`; missing ones are reported.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from peers import Command, Result, describe_machine, run_rounds

SEPARATOR = "<|endoftext|>"
END = 50256
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def documents(path: Path) -> Iterator[str]:
    """Return the documents of a file, as the scripts of the peers would read them."""
    held = ""
    with path.open(encoding="utf-8") as file:
        while block := file.read(1 << 22):
            *whole, held = (held + block).split(SEPARATOR)
            yield from whole
    yield held


def batches(path: Path, size: int = 64) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in documents(path):
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    yield batch


def prepare_command(inputs: Path) -> Command:
    """Return the command as a user would type it."""
    flags = ["--input-files", str(inputs / "text.txt"), "--out-dir", "{out}/data"]
    words = [sys.executable, "-m", "lowtide", "prepare", *flags, "--memory", "512MiB"]
    return Command(words, _read_total)


def _read_total(printed: str) -> dict[str, object]:
    (line,) = (line for line in printed.splitlines() if line.startswith("Total tokens:"))
    return {"tokens": int(line.split()[2].replace(",", ""))}


def encode(inputs: Path, out: Path) -> dict[str, object]:
    from lowtide import Tokenizer

    tokenizer = Tokenizer.load("gpt2")
    started = time.perf_counter()
    count = tokenizer.encode_file(inputs / "text.txt", out / "ids.bin")
    return {"tokens": count, "encode_file": round(time.perf_counter() - started, 2)}


def load_tiktoken(inputs: Path):
    """As tiktoken.get_encoding("gpt2"), from a file instead of the network."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    return tiktoken.Encoding(
        name="gpt2",
        pat_str=PATTERN,
        mergeable_ranks=load_tiktoken_bpe(str(inputs / "gpt2.tiktoken")),
        special_tokens={SEPARATOR: END},
    )


def tiktoken_threads(inputs: Path, out: Path) -> dict[str, object]:
    """encode_ordinary_batch on two threads, end-of-text, uint16 into one file."""
    import numpy as np

    encoding = load_tiktoken(inputs)
    count = 0
    with (out / "train.bin").open("wb") as file:
        for batch in batches(inputs / "text.txt"):
            for ids in encoding.encode_ordinary_batch(batch, num_threads=2):
                ids.append(END)
                count += len(ids)
                file.write(np.array(ids, dtype=np.uint16).tobytes())
    return {"tokens": count}


_encoding = None  # of a worker process


def _start_worker(inputs: Path) -> None:
    global _encoding
    _encoding = load_tiktoken(inputs)


def _encode_batch(batch: list[str]) -> bytes:
    import numpy as np

    ids: list[int] = []
    for text in batch:
        ids += _encoding.encode_ordinary(text)
        ids.append(END)
    return np.array(ids, dtype=np.uint16).tobytes()


def tiktoken_processes(inputs: Path, out: Path) -> dict[str, object]:
    """Two worker processes encode batches of documents, one file of uint16."""
    import multiprocessing

    count = 0
    with (
        (out / "train.bin").open("wb") as file,
        multiprocessing.Pool(2, _start_worker, (inputs,)) as pool,
    ):
        for data in pool.imap(_encode_batch, batches(inputs / "text.txt")):
            count += len(data) // 2
            file.write(data)
        pool.close()
        pool.join()
    return {"tokens": count}


def nanogpt(inputs: Path, out: Path) -> dict[str, object]:
    """datasets.map with tiktoken on two processes, then a memory map, as nanoGPT's own script."""
    import nanogpt_script

    os.environ["HF_DATASETS_OFFLINE"] = "1"
    nanogpt_script.load_encoding = functools.partial(load_tiktoken, inputs)
    return {"tokens": nanogpt_script.prepare(sorted((inputs / "jsonl").glob("*.jsonl")), out)}


def tokenizers_script(inputs: Path, out: Path) -> dict[str, object]:
    import numpy as np
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer.from_file(str(inputs / "tokenizer.json"))
    count = 0
    with (out / "train.bin").open("wb") as file:
        for batch in batches(inputs / "text.txt"):
            for row in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids = [*row.ids, END]
                count += len(ids)
                file.write(np.array(ids, dtype=np.uint16).tobytes())
    return {"tokens": count}


def datatrove_pipeline(inputs: Path, out: Path) -> dict[str, object]:
    """JsonlReader and DocumentTokenizer, two tasks on two workers."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(inputs / "jsonl"), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output_folder=str(out / "tokens"),
                local_working_dir=str(out / "work"),
                tokenizer_name_or_path=str(inputs / "tokenizer.json"),
                eos_token=SEPARATOR,
                save_filename="train",
            ),
        ],
        tasks=2,
        workers=2,
        logging_dir=str(out / "logs"),
    ).run()
    size = sum(path.stat().st_size for path in (out / "tokens").glob("*.ds"))
    return {"tokens": size // 2}


CONTENDERS: dict[str, Callable[[Path, Path], dict[str, object]]] = {
    "lowtide encode": encode,
    "tiktoken, 2 threads": tiktoken_threads,
    "tiktoken, 2 processes": tiktoken_processes,
    "nanoGPT": nanogpt,
    "tokenizers": tokenizers_script,
    "datatrove": datatrove_pipeline,
}
READS_JSONL = ("nanoGPT", "datatrove")


def run_contenders(names: Sequence[str], inputs: Path, *, rounds: int) -> list[Result]:
    return run_rounds(
        __file__,
        names,
        rounds=rounds,
        arguments=["--inputs", str(inputs)],
        commands={"lowtide prepare": prepare_command(inputs)},
    )


def run_contender(name: str, inputs: Path) -> None:
    out = Path(tempfile.mkdtemp(prefix="lowtide-benchmark-"))
    try:
        started = time.perf_counter()
        row = CONTENDERS[name](inputs, out)
        print(json.dumps({"seconds": time.perf_counter() - started, **row}))
    finally:
        shutil.rmtree(out)


def write_inputs(text: Path, folder: Path, *, megabytes: float, jsonl: bool) -> float:
    """Write the contenders' input; return the text's size in megabytes."""
    from lowtide import Tokenizer

    with text.open("rb") as file:
        data = file.read(int(megabytes * 1e6))
    path = folder / "text.txt"
    path.write_bytes(data.decode("utf-8", "ignore").encode())
    tokenizer = Tokenizer.load("gpt2")
    tokenizer.save(folder)
    tokenizer.save_tiktoken(folder / "gpt2.tiktoken")
    if jsonl:
        write_jsonl(folder)
    return path.stat().st_size / 1e6


def write_jsonl(folder: Path) -> None:
    """Write the text as rows, in two files."""
    (folder / "jsonl").mkdir()
    halves = [(folder / f"jsonl/{number}.jsonl").open("w") for number in range(2)]
    for number, document in enumerate(documents(folder / "text.txt")):
        halves[number % 2].write(json.dumps({"text": document, "id": number}) + "\n")
    for half in halves:
        half.close()


def print_table(results: Sequence[Result], *, megabytes: float) -> None:
    """Print the measurements as Markdown, and what they say about `lowtide prepare`."""
    print("| | wall s | core-s | MB/s | peak MB | tokens |\n|---|---|---|---|---|---|")
    for result in results:
        if result.error is not None:
            print(f"| {result.name} | failed: {result.error} | | | | |")
            continue
        wall, cores = min(result.wall_seconds), min(result.core_seconds)
        print(
            f"| {result.name} | {wall:.2f} | {cores:.2f} | {megabytes / wall:.0f} "
            f"| {result.peak_bytes / 1e6:.0f} | {result.notes['tokens']:,} |"
        )
    good = [result for result in results if result.error is None]
    ours = [result for result in good if result.name == "lowtide prepare"]
    peers = [result for result in good if not result.name.startswith("lowtide")]
    raw = [result for result in good if result.name == "lowtide encode"]
    for what, against in (("the fastest peer", peers), ("our encoder alone", raw)):
        if not ours or not against:
            continue
        wall = min(min(row.wall_seconds) for row in against) / min(ours[0].wall_seconds)
        cores = min(min(row.core_seconds) for row in against) / min(ours[0].core_seconds)
        print(f"\nlowtide prepare / {what}: {wall:.2f} by wall time, {cores:.2f} by core-seconds")
    if raw:
        print(
            f"\n`Tokenizer.encode_file` without start and loading: {raw[0].notes['encode_file']} s"
        )


def fastest_peer(results: Sequence[Result]) -> str:
    """The peer with the least wall time; the usual one if none was run."""
    peers = [row for row in results if row.error is None and not row.name.startswith("lowtide")]
    best = min(peers, key=lambda row: min(row.wall_seconds), default=None)
    return "tiktoken, 2 processes" if best is None else best.name


def compare_sizes(folder: Path, *, peer: str | None) -> None:
    """Prepare the text once and 17 times over, with all lines different, and print the peaks."""
    print("\n| | text | wall s | core-s | MB/s | peak |\n|---|---|---|---|---|---|")
    large = folder / "large"
    large.mkdir()
    data = (folder / "text.txt").read_bytes()
    with (large / "text.txt").open("wb") as file:
        for number in range(17):
            file.write(data.replace(b"\n", b" (%d)\n" % number) + SEPARATOR.encode())
    for name in ("gpt2.tiktoken", "tokenizer.json"):
        shutil.copy(folder / name, large / name)
    os.sync()  # else the system writes it while the first command runs
    names = ["lowtide prepare"] if peer is None else ["lowtide prepare", peer]
    for inputs in (folder, large):
        if peer in READS_JSONL and not (inputs / "jsonl").exists():
            write_jsonl(inputs)
        results = run_contenders(names, inputs, rounds=1)
        size = (inputs / "text.txt").stat().st_size / 1e6
        for result in results:
            if result.error is not None:
                print(f"| {result.name} | {size:.0f} MB | failed: {result.error} | | | |")
                continue
            wall, cores = result.wall_seconds[0], result.core_seconds[0]
            print(
                f"| {result.name} | {size:.0f} MB | {wall:.1f} | {cores:.1f} | {size / wall:.0f} "
                f"| {result.peak_bytes / 2**20:.0f} MiB |",
                flush=True,
            )
    ours, *others = results
    if others and ours.error is None and others[0].error is None:
        wall = others[0].wall_seconds[0] / ours.wall_seconds[0]
        cores = others[0].core_seconds[0] / ours.core_seconds[0]
        print(f"\nlowtide prepare / {peer}: {wall:.2f} by wall time, {cores:.2f} by core-seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("enwiki.txt"))
    parser.add_argument("--megabytes", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--large-peer", action="store_true")
    parser.add_argument("--only", nargs="*", default=["lowtide prepare", *CONTENDERS])
    parser.add_argument("--contender")
    parser.add_argument("--inputs", type=Path)
    given = parser.parse_args()
    if given.contender:
        run_contender(given.contender, given.inputs)
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-benchmark-") as name:
        folder = Path(name)
        jsonl = any(name in given.only for name in READS_JSONL)
        megabytes = write_inputs(given.text, folder, megabytes=given.megabytes, jsonl=jsonl)
        print(f"{megabytes:.0f} MB of {given.text.name}, {describe_machine()}\n", flush=True)
        results = run_contenders(given.only, folder, rounds=given.rounds)
        print_table(results, megabytes=megabytes)
        if given.sizes or given.large_peer:
            compare_sizes(folder, peer=fastest_peer(results) if given.large_peer else None)


if __name__ == "__main__":
    main()
