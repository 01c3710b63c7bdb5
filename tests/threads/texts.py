"""Files of words in several scripts, from a seed, with lines that repeat across files."""

from __future__ import annotations

import random
from pathlib import Path

_LETTERS = "etaoinshrdlucmfgypwbvkxjqzéüßЖжשקا中文日本한국กข"


def write_texts(folder: Path, *, num_files: int, num_lines: int) -> Path:
    """Write text files; a tenth of the lines is in more than one of them."""
    chooser = random.Random(9)
    words = ["".join(chooser.choices(_LETTERS, k=chooser.randint(1, 8))) for _ in range(2000)]
    repeated = [" ".join(chooser.choices(words, k=12)) for _ in range(num_lines // 10)]
    for number in range(num_files):
        lines = [" ".join(chooser.choices(words, k=12)) for _ in range(num_lines // num_files)]
        lines += repeated
        chooser.shuffle(lines)
        text = "".join(
            line + ("\n" if chooser.random() < 0.9 else "<|endoftext|>") for line in lines
        )
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder
