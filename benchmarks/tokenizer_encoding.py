"""Speed from a text file to a file of ids: lowtide and its peers, in one run.

Every contender reads the file, encodes it with special tokens as their ids, and writes uint16, or
uint32 for a vocabulary of more than 65,536. Each does so `--repeats` times in one process, so that
caches are warm for the later ones; the first time and the best time are both printed, in processor
time, which a busy machine affects less.

    python benchmarks/tokenizer_encoding.py --text enwiki.txt --rounds 3
    python benchmarks/tokenizer_encoding.py --text russian.txt --tokenizer llama3/tokenizer.json \\
        --peers gigatoken
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


def lowtide_encoder(source: str) -> Encode:
    from lowtide import Tokenizer

    tokenizer = Tokenizer.load(source)
    return lambda path, out: tokenizer.encode_file(path, out)


def huggingface_tokenizer(source: str):
    from tokenizers import Tokenizer

    from lowtide import Tokenizer as OurTokenizer

    with tempfile.TemporaryDirectory() as folder:
        OurTokenizer.load(source).save(folder)
        return Tokenizer.from_file(str(Path(folder, "tokenizer.json")))


def width_of(tokenizer) -> type:
    return np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32


def gigatoken_encoder(source: str) -> Encode:
    import gigatoken

    theirs = huggingface_tokenizer(source)
    tokenizer, dtype = gigatoken.Tokenizer(theirs), width_of(theirs)

    def encode(path: Path, out: Path) -> int:
        ids = tokenizer.encode(path.read_bytes())
        ids.astype(dtype).tofile(out)
        return len(ids)

    return encode


def gigatoken_pieces_encoder(source: str) -> Encode:
    """Encode 32 MiB at a time, divided at document ends, as a user with less memory would."""
    import gigatoken

    theirs = huggingface_tokenizer(source)
    tokenizer, dtype = gigatoken.Tokenizer(theirs), width_of(theirs)

    def encode(path: Path, out: Path) -> int:
        count = 0
        held = b""
        with path.open("rb") as text, out.open("wb") as target:
            while part := text.read(32 << 20):
                held += part
                cut = held.rfind(SPECIAL.encode()) + len(SPECIAL)
                ids = tokenizer.encode(held[:cut])
                held = held[cut:]
                ids.astype(dtype).tofile(target)
                count += len(ids)
            ids = tokenizer.encode(held)
            ids.astype(dtype).tofile(target)
        return count + len(ids)

    return encode


def tiktoken_encoder(source: str) -> Encode:
    import tiktoken

    from lowtide import Tokenizer

    if source != "gpt2":
        raise SystemExit("tiktoken is compared with gpt2 only")
    data = Tokenizer.load(source).data
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


def huggingface_encoder(source: str) -> Encode:
    tokenizer = huggingface_tokenizer(source)
    dtype, end = width_of(tokenizer), tokenizer.encode(SPECIAL, add_special_tokens=False).ids

    def encode(path: Path, out: Path) -> int:
        texts = path.read_text(encoding="utf-8", errors="replace").split(SPECIAL)
        rows = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.array([*row.ids, *end], dtype=dtype) for row in rows])
        ids = ids[: len(ids) - len(end)]
        ids.tofile(out)
        return len(ids)

    return encode


ENCODERS: dict[str, Callable[[str], Encode]] = {
    "lowtide": lowtide_encoder,
    "gigatoken": gigatoken_encoder,
    "gigatoken-pieces": gigatoken_pieces_encoder,
    "tiktoken": tiktoken_encoder,
    "huggingface": huggingface_encoder,
}


def contend(name: str, tokenizer: str, path: Path, repeats: int) -> None:
    """Encode the file `repeats` times and print the best time, scaled to the whole file."""
    encode = ENCODERS[name](tokenizer)
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
        core_times: list[float] = []
        for _ in range(repeats):
            start, core_start = time.perf_counter(), time.process_time()
            row["ids"] = encode(path, Path(folder, "ids.bin"))
            times.append(time.perf_counter() - start)
            core_times.append(time.process_time() - core_start)
        scale = whole / path.stat().st_size
    row["first"] = f"{times[0] * scale:.2f} s"
    first, best = core_times[0] * scale / whole * 1e9, min(core_times) * scale / whole * 1e9
    row["of processors"] = f"first {first:.1f}, best {best:.1f} ns a byte"
    print(json.dumps({"seconds": min(times) * scale, **row}))


def main() -> None:
    """Run all contenders and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", default="gpt2", help="as Tokenizer.load takes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(arguments.contender, arguments.tokenizer, arguments.text, arguments.repeats)
        return
    passed = ["--text", str(arguments.text), "--repeats", str(arguments.repeats)]
    passed += ["--tokenizer", arguments.tokenizer]
    names = ["lowtide", *arguments.peers]
    results = run_rounds(__file__, names, rounds=arguments.rounds, arguments=passed)
    size = arguments.text.stat().st_size / 1e6
    print_table(
        f"Text file to ids, {arguments.tokenizer}, {size:.1f} MB ({describe_machine()})",
        results,
        megabytes=size,
    )


if __name__ == "__main__":
    main()
