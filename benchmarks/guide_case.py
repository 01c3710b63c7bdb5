"""The case of the guides: BPE with 32,000 tokens on 11.9 GB of text, and the text prepared.

In:      nothing: the text is generated, from artificial words with the frequencies of a language
Out:     a Markdown table on stdout: seconds, start-up included, and peak memory of each verb

    python benchmarks/guide_case.py --size 11.9GB --folder /scratch

Needs three times the size on the disk. Lines are all different, so that deduplication removes
nothing; there are 200,000 words, and the one of rank r is drawn in proportion to 1 / (r + 2.7).
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
from pathlib import Path

import numpy as np

from lowtide.memory import format_size, parse_size, usable_cores
from lowtide.progress import format_seconds
from memory_by_size import run

_WORDS = 200_000
_PHRASES = 1 << 17
_LINES = 1 << 16  # generated at once
_LINES_PER_DOCUMENT = 12


def main() -> None:
    """Generate the text, run both verbs, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", default="11.9GB", help="bytes of text")
    parser.add_argument("--folder", type=Path, help="where there is room for three times as much")
    parser.add_argument("--memory", default="1GiB", help="budget of each verb")
    arguments = parser.parse_args()
    size = parse_size(arguments.size)
    with tempfile.TemporaryDirectory(prefix="lowtide-case-", dir=arguments.folder) as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        if free < 3 * size:
            parser.error(f"{format_size(free)} are free, {format_size(3 * size)} are needed")
        # In another process: the kernel counts the parent's memory as part of a process's peak.
        maker = multiprocessing.get_context("spawn").Process(
            target=write_text, args=(folder / "text.txt", size)
        )
        maker.start()
        maker.join()
        rows = measure(folder, arguments.memory)
    print(f"{size / 1e9:.1f} GB of made text, {usable_cores()} cores, budget {arguments.memory}\n")
    print("| verb | seconds | peak memory |\n|---|---|---|")
    for verb, seconds, peak in rows:
        print(f"| {verb} | {format_seconds(seconds)} | {format_size(peak)} |")


def write_text(path: Path, size: int) -> None:
    """Write `size` bytes of documents; the same bytes for the same size."""
    random = np.random.default_rng(0)
    phrases = _make_phrases(random)
    written = number = 0
    with path.open("wb") as file:
        while written < size:
            places = random.integers(_PHRASES, size=(_LINES, 5))
            lines = [
                b" ".join([phrases[a], phrases[b], phrases[c], phrases[d], phrases[e]])
                for a, b, c, d, e in places.tolist()
            ]
            for first in range(0, _LINES, _LINES_PER_DOCUMENT):
                number += 1
                text = b".\n".join(lines[first : first + _LINES_PER_DOCUMENT])
                written += file.write(b"%d %s.\n<|endoftext|>\n" % (number, text))
                if written >= size:
                    break


def _make_phrases(random: np.random.Generator) -> list[bytes]:
    """Some thousand strings of eight words each, frequent words more often than others."""
    parts = [b"ba", b"con", b"de", b"er", b"in", b"ly", b"me", b"ness", b"ing", b"st", b"th", b"re",
             b"un", b"ver", b"a", b"o", b"tion", b"s"]  # fmt: skip
    lengths = random.integers(1, 5, size=_WORDS)
    words = [b"".join(parts[i] for i in random.integers(len(parts), size=n)) for n in lengths]
    shares = 1 / (np.arange(_WORDS) + 2.7)
    drawn = random.choice(_WORDS, size=(_PHRASES, 8), p=shares / shares.sum())
    return [b" ".join(words[i] for i in row) for row in drawn.tolist()]


def measure(folder: Path, memory: str) -> list[tuple[str, float, int]]:
    """Seconds and peak of each verb."""
    text, tokenizer, budget = folder / "text.txt", folder / "tok", ["--memory", memory]
    learn = ["train-tokenizer", "--input", text, "--vocab-size", "32000", "--out-dir", tokenizer]
    learn += ["--special-tokens", "<|endoftext|>"]
    prepare = ["prepare", "--input-files", text, "--tokenization", tokenizer]
    prepare += ["--out-dir", folder / "data"]
    return [(str(words[0]), *run([*words, *budget])) for words in (learn, prepare)]


if __name__ == "__main__":
    main()
