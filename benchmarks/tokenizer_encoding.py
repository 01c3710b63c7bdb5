"""How fast does a text file become a file of GPT-2 ids (uint16)? lowtide and its peers, in one run.

Every contender reads the file, encodes it with <|endoftext|> as its id, and writes uint16. Each
does so `--repeats` times in one process, so that caches are warm for the later ones; the first time
and the best time are both shown.

    python benchmarks/tokenizer_encoding.py --text enwiki.txt --rounds 3
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from peers import describe_machine, print_table, run_rounds

SPECIAL = "<|endoftext|>"
PEERS = ("gigatoken", "gigatoken-pieces", "tiktoken", "huggingface")
SLOW = ("tiktoken", "huggingface")  # measured on a part of the text, once: they take minutes
SLOW_BYTES = 20_000_000

Encode = Callable[[Path, Path], int]


def lowtide_encoder() -> Encode:
    from lowtide import Tokenizer

    tokenizer = Tokenizer.load("gpt2")
    return lambda path, out: tokenizer.encode_file(path, out, dtype=np.uint16)


def huggingface_tokenizer():
    from tokenizers import Tokenizer

    from lowtide import Tokenizer as OurTokenizer

    with tempfile.TemporaryDirectory() as folder:
        OurTokenizer.load("gpt2").save(folder)
        return Tokenizer.from_file(str(Path(folder, "tokenizer.json")))


def gigatoken_encoder() -> Encode:
    import gigatoken

    tokenizer = gigatoken.Tokenizer(huggingface_tokenizer())

    def encode(path: Path, out: Path) -> int:
        ids = tokenizer.encode(path.read_bytes())
        ids.astype(np.uint16).tofile(out)
        return len(ids)

    return encode


def gigatoken_pieces_encoder() -> Encode:
    """Encode 32 MiB at a time, cut at document ends: what a user with less memory would write."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer(huggingface_tokenizer())

    def encode(path: Path, out: Path) -> int:
        count = 0
        held = b""
        with path.open("rb") as source, out.open("wb") as target:
            while part := source.read(32 << 20):
                held += part
                cut = held.rfind(SPECIAL.encode()) + len(SPECIAL)
                ids = tokenizer.encode(held[:cut])
                held = held[cut:]
                ids.astype(np.uint16).tofile(target)
                count += len(ids)
            ids = tokenizer.encode(held)
            ids.astype(np.uint16).tofile(target)
        return count + len(ids)

    return encode


def tiktoken_encoder() -> Encode:
    import tiktoken

    from lowtide import Tokenizer

    data = Tokenizer.load("gpt2").data
    special_ids = set(data.special_tokens.values())
    ranks = {token: id for id, token in enumerate(data.tokens) if id not in special_ids}
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        mergeable_ranks=ranks,
        special_tokens=dict(data.special_tokens),
    )

    def encode(path: Path, out: Path) -> int:
        texts = path.read_text(encoding="utf-8", errors="replace").split(SPECIAL)
        with ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(encoding.encode_ordinary, texts))
        ids = [id for row in rows for id in (*row, data.special_tokens[SPECIAL])][:-1]
        np.array(ids, dtype=np.uint16).tofile(out)
        return len(ids)

    return encode


def huggingface_encoder() -> Encode:
    tokenizer = huggingface_tokenizer()

    def encode(path: Path, out: Path) -> int:
        texts = path.read_text(encoding="utf-8", errors="replace").split(SPECIAL)
        rows = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.array([*row.ids, 50256], dtype=np.uint16) for row in rows])[:-1]
        ids.tofile(out)
        return len(ids)

    return encode


ENCODERS: dict[str, Callable[[], Encode]] = {
    "lowtide": lowtide_encoder,
    "gigatoken": gigatoken_encoder,
    "gigatoken-pieces": gigatoken_pieces_encoder,
    "tiktoken": tiktoken_encoder,
    "huggingface": huggingface_encoder,
}


def contend(name: str, path: Path, repeats: int) -> None:
    """Encode the file `repeats` times and print the best time, scaled to the whole file."""
    encode = ENCODERS[name]()
    whole = path.stat().st_size
    row: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        if name in SLOW and whole > SLOW_BYTES:
            part = Path(folder, "part.txt")
            with path.open("rb") as source:
                part.write_bytes(source.read(SLOW_BYTES))
            path, repeats = part, 1
            row["of"] = f"{SLOW_BYTES / 1e6:.0f} MB, scaled"
        times: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            row["ids"] = encode(path, Path(folder, "ids.bin"))
            times.append(time.perf_counter() - start)
        scale = whole / path.stat().st_size
    print(json.dumps({"seconds": min(times) * scale, "first": f"{times[0] * scale:.2f} s", **row}))


def main() -> None:
    """Run all contenders and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(arguments.contender, arguments.text, arguments.repeats)
        return
    passed = ["--text", str(arguments.text), "--repeats", str(arguments.repeats)]
    names = ["lowtide", *arguments.peers]
    results = run_rounds(__file__, names, rounds=arguments.rounds, arguments=passed)
    size = arguments.text.stat().st_size / 1e6
    print_table(
        f"Text file to uint16 ids, GPT-2, {size:.0f} MB ({describe_machine()})",
        results,
        megabytes=size,
    )


if __name__ == "__main__":
    main()
