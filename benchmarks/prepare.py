"""How fast does text become shards? lowtide prepare, everything on, against what people use.

python benchmarks/prepare.py [--text enwiki.txt] [--rounds 3] [--megabytes 120] [--sizes]

The peers only encode (with GPT-2's vocabulary, end-of-text between documents, two workers): they do
not clean, filter, deduplicate, shuffle or split. `lowtide encode` is our encoder alone, the speed
that `lowtide prepare` is measured against. `--sizes` also prepares the text 17 times over.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from peers import describe_machine, print_table, run_rounds

SEPARATOR = "<|endoftext|>"
END = 50256


def documents(path: Path) -> Iterator[str]:
    """Give the documents of a file, as the scripts of the peers would read them."""
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


def prepare(text: Path, out: Path) -> dict[str, object]:
    from lowtide import prepare_dataset

    result = prepare_dataset(input_files=[text], out_dir=out / "data", memory="512MiB")
    assert result.info is not None
    return {"tokens": result.info.metadata["total_tokens"]}


def encode(text: Path, out: Path) -> dict[str, object]:
    from lowtide import Tokenizer

    return {"tokens": Tokenizer.load("gpt2").encode_file(text, out / "ids.bin")}


def tiktoken_script(text: Path, out: Path) -> dict[str, object]:
    """As nanoGPT's prepare.py does it: encode_ordinary, end-of-text, uint16 into one file."""
    import tiktoken

    from lowtide import Tokenizer

    ranks = {token: number for number, token in Tokenizer.load("gpt2").vocabulary.items()}
    encoding = tiktoken.Encoding(  # as tiktoken.get_encoding("gpt2"), without its download
        name="gpt2",
        pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"""
        r"""|\s+(?!\S)|\s""",
        mergeable_ranks={token: number for token, number in ranks.items() if number != END},
        special_tokens={SEPARATOR: END},
    )
    count = 0
    with (out / "train.bin").open("wb") as file:
        for batch in batches(text):
            for ids in encoding.encode_ordinary_batch(batch, num_threads=2):
                ids.append(END)
                count += len(ids)
                file.write(np.array(ids, dtype=np.uint16).tobytes())
    return {"tokens": count}


def tokenizers_script(text: Path, out: Path) -> dict[str, object]:
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer.from_file(str(gpt2_json(out)))
    count = 0
    with (out / "train.bin").open("wb") as file:
        for batch in batches(text):
            for row in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids = [*row.ids, END]
                count += len(ids)
                file.write(np.array(ids, dtype=np.uint16).tobytes())
    return {"tokens": count}


def datatrove_pipeline(text: Path, out: Path) -> dict[str, object]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    with (out / "text.jsonl").open("w") as file:  # its readers want rows; not timed
        for number, document in enumerate(documents(text)):
            file.write(json.dumps({"text": document, "id": number}) + "\n")
    started = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(out), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output_folder=str(out / "tokens"),
                local_working_dir=str(out / "work"),
                tokenizer_name_or_path=str(gpt2_json(out)),
                eos_token=SEPARATOR,
                save_filename="train",
            ),
        ],
        tasks=1,
        logging_dir=str(out / "logs"),
    ).run()
    return {"seconds": time.perf_counter() - started}


def gpt2_json(out: Path) -> Path:
    from lowtide import Tokenizer

    Tokenizer.load("gpt2").save(out)
    return out / "tokenizer.json"


CONTENDERS: dict[str, Callable[[Path, Path], dict[str, object]]] = {
    "lowtide prepare": prepare,
    "lowtide encode": encode,
    "tiktoken script": tiktoken_script,
    "tokenizers script": tokenizers_script,
    "datatrove": datatrove_pipeline,
}


def run_contender(name: str, text: Path) -> None:
    out = Path(tempfile.mkdtemp(prefix="lowtide-benchmark-"))
    try:
        started = time.perf_counter()
        row = CONTENDERS[name](text, out)
        seconds = time.perf_counter() - started
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cores = sum(usage.ru_utime + usage.ru_stime for usage in used)
        print(json.dumps({"seconds": seconds, "core-seconds": round(cores, 2), **row}))
    finally:
        shutil.rmtree(out)


def compare_sizes(text: Path) -> None:
    """Prepare the text once and 17 times over, lines made different, and show the peaks."""
    print("\n| text | seconds | peak of a budget of 512 MiB |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="lowtide-benchmark-") as folder:
        large = Path(folder, "large.txt")
        data = text.read_bytes()
        with large.open("wb") as file:
            for number in range(17):
                file.write(data.replace(b"\n", b" (%d)\n" % number) + SEPARATOR.encode())
        for path in (text, large):
            command = [
                sys.executable,
                __file__,
                "--contender",
                "lowtide prepare",
                "--text",
                str(path),
            ]
            started = time.perf_counter()
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            peak = next(line for line in ended.stderr.splitlines() if line.startswith("prepare:"))
            seconds = time.perf_counter() - started
            print(f"| {path.stat().st_size / 1e6:.0f} MB | {seconds:.1f} | {peak} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("enwiki.txt"))
    parser.add_argument("--megabytes", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--contender")
    given = parser.parse_args()
    if given.contender:
        run_contender(given.contender, given.text)
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-benchmark-") as folder:
        part = Path(folder, "part.txt")
        data = given.text.read_bytes()[: int(given.megabytes * 1e6)]
        part.write_bytes(data.decode("utf-8", "ignore").encode())
        results = run_rounds(
            __file__, given.only, rounds=given.rounds, arguments=["--text", str(part)]
        )
        title = f"{part.stat().st_size / 1e6:.0f} MB of {given.text.name}, {describe_machine()}"
        print_table(title, results, megabytes=part.stat().st_size / 1e6)
        if given.sizes:
            compare_sizes(part)


if __name__ == "__main__":
    main()
