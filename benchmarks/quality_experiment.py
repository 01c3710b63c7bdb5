"""Effect of quality steps: the same small model on as many tokens, with and without them.

    python benchmarks/quality_experiment.py --seeds 3 --steps 200 enwiki.txt.xz

The corpus consists of the given articles: a part unchanged, near copies of a few of them, pages of
boilerplate, and noise (random letters and symbols). One preparation is the default one, the other
also has `--rules gopher,c4,fineweb` and `--near-dedup 0.8`; both with one tokenizer, learned from
the mixed text. Each seed trains on as many tokens of either, and is evaluated on articles that are
in neither. Prints the validation loss of each run and the means.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SEPARATOR = "<|endoftext|>"
STEPS = ["--rules", "gopher,c4,fineweb", "--rule-limit", "c4.end-mark=0", "--near-dedup", "0.8"]
MENU = [
    "Home", "About us", "Contact", "Sign in", "My account", "Items in cart: 0", "Read more...",
    "This site uses cookies. By using it you accept our cookie policy.", "Terms of use",
    "Privacy policy", "Share on all networks", "12 likes", "Copyright, all rights reserved",
    "Please enable javascript to see this page.", "Next page", "Previous page", "Search",
]  # fmt: skip


def read_articles(path: Path, wanted_bytes: int) -> list[str]:
    """The first articles of a file, as many as are wanted."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        text = file.read(wanted_bytes).decode(errors="ignore")
    return [part.strip()[:6000] for part in text.split(SEPARATOR)[:-1] if len(part) > 1500]


def edit(text: str, chooser: random.Random) -> str:
    """A near copy: every fiftieth word is replaced."""
    words = text.split(" ")
    for at in range(len(words)):
        if chooser.random() < 0.02:
            words[at] = chooser.choice(words)
    return " ".join(words)


def make_mixture(articles: list[str], chooser: random.Random) -> list[str]:
    """A third good text, the rest near copies of a few articles, boilerplate and noise."""
    size = sum(map(len, articles))
    pages = list(articles)
    kinds = (
        lambda: edit(chooser.choice(articles[:8]), chooser),
        lambda: "\n".join(chooser.choices(MENU, k=60)),
        lambda: "".join(chooser.choices("etaoinshrdlu    #{}[]%&0123456789\n", k=3000)),
    )
    for make in kinds:
        made = 0
        while made < size * 2 / 3:
            pages.append(make())
            made += len(pages[-1])
    chooser.shuffle(pages)
    return pages


def lowtide(*words: object) -> str:
    """Run a verb; return what it printed."""
    command = [sys.executable, "-m", "lowtide", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def train(folder: Path, dataset: str, seed: int, given: argparse.Namespace) -> float:
    """Train a model on a dataset; return its loss on the clean articles."""
    name = f"{dataset}-{seed}"
    shape = ["--num-layers", 3, "--width", 96, "--seq-len", 128, "--batch-size", 16]
    lowtide(
        "train", "--dataset-dir", folder / dataset, "--model-name", name, *shape, "--seed", seed,
        "--max-iters", given.steps, "--eval-interval", given.steps, "--device", "cpu",
        "--checkpoints-dir", folder / "runs",
    )  # fmt: skip
    found = lowtide(
        "evaluate", "--model-name", name, "--checkpoints-dir", folder / "runs", "--split", "all",
        "--dataset-dir", f"clean={folder / 'clean'}", "--eval-iters", 20, "--json",
    )  # fmt: skip
    return float(json.loads(found)["datasets"]["clean"]["loss"])


def main() -> None:
    """Make the corpus, prepare it twice, train and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("articles", type=Path, help="text with <|endoftext|> between articles")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=2)
    parser.add_argument("--pages", type=Path, help="write the mixed pages as jsonl, and end")
    given = parser.parse_args()
    articles = read_articles(given.articles, int(given.megabytes * 4e6))
    held = max(len(articles) // 8, 1)
    clean, good = articles[:held], articles[held:]
    pages = make_mixture(good, random.Random(0))
    if given.pages:
        given.pages.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mixed.txt").write_text(SEPARATOR.join(pages))
        (folder / "clean.txt").write_text(SEPARATOR.join(clean))
        tokenizer = folder / "tok"
        mixed = folder / "mixed.txt"
        lowtide("train-tokenizer", "--input", mixed, "--vocab-size", 2048, "--out-dir", tokenizer)
        common = ["--tokenization", tokenizer, "--val-fraction", 0.02]
        lowtide("prepare", "--input-files", mixed, "--out-dir", folder / "plain", *common)
        lowtide("prepare", "--input-files", mixed, "--out-dir", folder / "judged", *common, *STEPS)
        more = ["--tokenization", tokenizer, "--val-fraction", 0]
        lowtide("prepare", "--input-files", folder / "clean.txt", "--out-dir", folder / "clean",
                *more)  # fmt: skip
        print(f"{len(pages)} pages, {mixed.stat().st_size / 1e6:.1f} MB; {len(good)} are articles")
        losses: dict[str, list[float]] = {"plain": [], "judged": []}
        for dataset in losses:
            info = json.loads((folder / dataset / "dataset_metadata.json").read_text())
            print(f"{dataset}: {info['total_documents']} pages, {info['total_tokens']:,} tokens")
        for seed in range(given.seeds):
            for dataset, found in losses.items():
                found.append(train(folder, dataset, seed, given))
                print(f"seed {seed}, {dataset}: loss {found[-1]:.4f}", flush=True)
        for dataset, found in losses.items():
            print(f"{dataset}: mean {statistics.mean(found):.4f}, {given.steps * 2048:,} tokens")


if __name__ == "__main__":
    main()
