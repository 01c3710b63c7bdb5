"""Memory while the text grows: time and peak of each stage at several corpus sizes.

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

    A text that is too short is repeated, each line with the number of the round at its end, so
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
    """Run a verb; return its seconds, start-up included, and its peak by the kernel's count."""
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
    """Return the rows as Markdown: one line per corpus size, time and peak per stage."""
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


_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #55606e } .grid { stroke: #dfe4ea }
polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round } .value { font-size: 11.5px }
.corpus { stroke: #7d8794; stroke-dasharray: 2 4 }
.budget { stroke: #b3261e; stroke-dasharray: 8 5 }
.c0 { stroke: #005a9c } .c1 { stroke: #c2410c }
circle.c0 { fill: #005a9c } circle.c1 { fill: #c2410c }
text.c0 { fill: #005a9c; stroke: none } text.c1 { fill: #c2410c; stroke: none }
text.corpus { fill: #55606e; stroke: none } text.budget { fill: #b3261e; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #a3adba } .grid { stroke: #2c3540 } .corpus { stroke: #8b95a3 }
.budget { stroke: #ff8a80 } .c0 { stroke: #6cb6ff } .c1 { stroke: #ff9f6b }
circle.c0 { fill: #6cb6ff } circle.c1 { fill: #ff9f6b } text.c0 { fill: #6cb6ff }
text.c1 { fill: #ff9f6b } text.corpus { fill: #a3adba } text.budget { fill: #ff8a80 } }
"""


def as_picture(rows: list[Row], budget_bytes: int) -> str:
    """Draw peak memory against corpus size, both logarithmic, with the budget and the corpus."""
    width, height, left, right, bottom, top = 760, 420, 80, 190, 64, 24
    sizes = sorted({row.corpus_bytes for row in rows})
    values = [row.peak_bytes for row in rows] + [budget_bytes, *sizes]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    first, last = math.log(sizes[0]), math.log(sizes[-1])

    def x(size: float) -> float:
        return left + (math.log(size) - first) / max(last - first, 1e-9) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - (math.log2(value) - low) / (high - low) * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>peak memory against corpus size</title><style>{_STYLE}</style>",
    ]
    for power in range(low, high + 1, 2):
        place = f"{y(2**power):.1f}"
        parts.append(
            f'<line class="grid" x1="{left}" x2="{width - right}" y1="{place}" y2="{place}"/>'
        )
        parts.append(_label(left - 8, y(2**power) + 4, _short(2**power), anchor="end"))
    for size in sizes:
        name = f"{size / 1e9:g} GB" if size >= 1e9 else f"{size / 1e6:g} MB"
        parts.append(_label(x(size), height - bottom + 22, name, anchor="middle"))
    parts.append(
        _label(left, height - 12, "size of the corpus; peak resident memory of each command")
    )
    ends: list[tuple[float, str, str]] = []
    lines = [
        ("corpus", "the corpus itself", [(size, size) for size in sizes]),
        ("budget", f"budget, {_short(budget_bytes)}", [(size, budget_bytes) for size in sizes]),
    ]
    for number, verb in enumerate(dict.fromkeys(row.verb for row in rows)):
        points = [(row.corpus_bytes, row.peak_bytes) for row in rows if row.verb == verb]
        lines.append((f"c{number}", f"{verb}, {_short(points[-1][1])}", points))
    for kind, label, points in lines:
        ends.append((y(points[-1][1]), kind, label))
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in points)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for size, value in points if kind.startswith("c") and kind != "corpus" else ():
            parts.append(f'<circle class="{kind}" cx="{x(size):.1f}" cy="{y(value):.1f}" r="4"/>')
    for size in sizes[:-1]:  # the values: the larger one above its point, the smaller one below
        here = sorted(row.peak_bytes for row in rows if row.corpus_bytes == size)
        shift, anchor = (8, "start") if size == sizes[0] else (0, "middle")  # away from the axis
        for value, rise in ((here[0], 20), (here[-1], -11)):
            parts.append(_label(x(size) + shift, y(value) + rise, _short(value), "value", anchor))
    place = 0.0
    for wanted, kind, label in sorted(ends):
        place = max(wanted + 4, place + 17)  # labels of close ends do not overlap
        parts.append(_label(width - right + 10, place, label, kind))
    return "\n".join([*parts, "</svg>", ""])


def _label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _short(size: float) -> str:
    """Return a size without insignificant digits.

    >>> _short(1 << 30), _short(114.4 * (1 << 20))
    ('1 GiB', '114 MiB')
    """
    number, unit = format_size(size).split()
    return f"{float(number):.0f} {unit}" if float(number) >= 10 else f"{float(number):g} {unit}"


if __name__ == "__main__":
    main()
