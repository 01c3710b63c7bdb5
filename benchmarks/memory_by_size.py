"""Does memory stay flat while the text grows? Time and peak of each stage at several corpus sizes.

In:      one text file (--text); its first 1, 10, 100 MB … are the corpora, repeated if need be
Out:     a Markdown table on stdout; with --picture an SVG of peak memory against corpus size

    python benchmarks/memory_by_size.py --text enwiki.txt --sizes 1MB 10MB 100MB --memory 512MiB
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory import format_size, parse_size, usable_cores
from lowtide.progress import format_seconds


@dataclass(frozen=True)
class Row:
    """One stage at one corpus size."""

    corpus_bytes: int
    verb: str
    seconds: float
    peak_bytes: int


def main() -> None:
    """Measure, print the table, draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, required=True, help="text file; taken again if it is too short"
    )
    parser.add_argument("--sizes", nargs="+", default=["1MB", "10MB", "100MB"])
    parser.add_argument("--memory", default="512MiB", help="budget of every stage")
    parser.add_argument("--picture", type=Path, help="SVG to write")
    arguments = parser.parse_args()
    sizes = [parse_size(size) for size in arguments.sizes]
    if arguments.text.stat().st_size == 0:
        parser.error(f"{arguments.text} is empty")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="lowtide-sizes-") as folder:
        for size in sizes:
            rows += measure_size(arguments.text, size, arguments.memory, Path(folder))
    print(as_table(rows, arguments.memory))
    if arguments.picture:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        arguments.picture.write_text(as_picture(rows, parse_size(arguments.memory)))


def measure_size(text: Path, size: int, memory: str, folder: Path) -> list[Row]:
    """Run the stages on the first `size` bytes of `text`, cut at a line."""
    corpus = folder / f"{size}.txt"
    copy_head(text, corpus, size)
    place = folder / str(size)
    budget = ["--memory", memory]
    commands = [
        ["train-tokenizer", "--input", corpus, "--vocab-size", "8000", "--out-dir", place / "tok"],
        [
            "prepare",
            "--input-files",
            corpus,
            "--tokenization",
            place / "tok",
            "--out-dir",
            place / "data",
        ],
    ]
    rows: list[Row] = []
    for command in commands:
        seconds, peak = run([*command, *budget])
        rows.append(Row(size, str(command[0]), seconds, peak))
    shutil.rmtree(place)
    corpus.unlink()
    return rows


def copy_head(source: Path, target: Path, size: int) -> None:
    """Copy whole lines of `source` until `target` has `size` bytes.

    A text that is too short is taken again, each line with the number of the round at its end, so
    that deduplication finds as much new text as there is.
    """
    written = num_rounds = 0
    with target.open("wb") as writing:
        while written < size:
            mark = f" {num_rounds}".encode() if num_rounds else b""
            with source.open("rb") as reading:
                for line in reading:
                    written += writing.write(line.rstrip(b"\n") + mark + b"\n")
                    if written >= size:
                        break
            num_rounds += 1


def run(command: list[str | Path]) -> tuple[float, int]:
    """Run a verb; give its seconds, start-up included, and its peak as the kernel counted it."""
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "lowtide", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    message = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stderr.close()
    if child.returncode:
        sys.exit(f"{command}: exit code {child.returncode}\n{message.decode(errors='replace')}")
    return time.monotonic() - began, usage.ru_maxrss * 1024


def as_table(rows: list[Row], memory: str) -> str:
    """Give the rows as Markdown: one line per corpus size, time and peak per stage."""
    verbs = list(dict.fromkeys(row.verb for row in rows))
    lines = [
        f"{usable_cores()} cores, budget {memory} for each stage",
        "",
        "| corpus | " + " | ".join(f"{verb}: time | peak memory" for verb in verbs) + " |",
        "|---" * (1 + 2 * len(verbs)) + "|",
    ]
    for size in dict.fromkeys(row.corpus_bytes for row in rows):
        cells = [f"{size / 1e6:.0f} MB"]
        for row in rows:
            if row.corpus_bytes == size:
                cells += [format_seconds(row.seconds), format_size(row.peak_bytes)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_picture(rows: list[Row], budget_bytes: int) -> str:
    """Draw peak memory against corpus size, both logarithmic, with the budget and the corpus."""
    width, height, left, bottom, top = 720, 400, 90, 60, 30
    sizes = sorted({row.corpus_bytes for row in rows})
    values = [row.peak_bytes for row in rows] + [budget_bytes, *sizes]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    first, last = math.log(sizes[0]), math.log(sizes[-1])

    def x(size: float) -> float:
        return left + (math.log(size) - first) / max(last - first, 1e-9) * (width - left - 170)

    def y(value: float) -> float:
        return height - bottom - (math.log2(value) - low) / (high - low) * (height - bottom - top)

    labels: list[tuple[float, str, str]] = []

    def line(points: list[tuple[float, float]], colour: str, label: str, dash: str = "") -> str:
        labels.append((points[-1][1], colour, label))
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        style = f'fill="none" stroke="{colour}" stroke-width="2.5" {dash}'
        return f'<polyline points="{path}" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for power in range(low, high + 1, 2):
        parts += [
            f'<line x1="{left}" x2="{width - 170}" y1="{y(2**power):.1f}" y2="{y(2**power):.1f}" '
            'stroke="#dddddd"/>',
            f'<text x="{left - 8}" y="{y(2**power) + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{format_size(2**power)}</text>",
        ]
    for size in sizes:
        parts.append(
            f'<text x="{x(size):.1f}" y="{height - bottom + 22}" text-anchor="middle" '
            f'fill="#555555">{size / 1e6:.0f} MB</text>'
        )
    parts.append(
        f'<text x="{left}" y="{height - 12}" fill="#555555">size of the corpus; '
        "peak resident memory of each command</text>"
    )
    dots, dashes = 'stroke-dasharray="2 4"', 'stroke-dasharray="8 5"'
    parts.append(line([(x(s), y(s)) for s in sizes], "#999999", "the corpus itself", dots))
    ends = [(x(sizes[0]), y(budget_bytes)), (x(sizes[-1]), y(budget_bytes))]
    parts.append(line(ends, "#c0392b", "budget", dashes))
    colours = ["#1f5fa8", "#1d8a5b", "#8a5a1d"]
    for verb, colour in zip(dict.fromkeys(row.verb for row in rows), colours, strict=False):
        points = [(x(row.corpus_bytes), y(row.peak_bytes)) for row in rows if row.verb == verb]
        parts.append(line(points, colour, verb))
    place = 0.0
    for wanted, colour, label in sorted(labels):
        place = max(wanted + 4, place + 16)  # names of lines that end close together stay apart
        parts.append(f'<text x="{width - 162}" y="{place:.1f}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
