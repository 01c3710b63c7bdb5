"""How fast text is judged, signed and scored, beside datatrove, rensa and fasttext in the same run.

    python benchmarks/quality_peers.py --peer-python /tmp/peers/bin/python corpus.txt

`--peer-python` is an interpreter that has datatrove, spaCy, rensa and fasttext, in an environment
of its own: their packages collide with ours. Rules: the four presets of FineWeb's order in one
pass, against datatrove's four filters one after the other. Near copies: signatures of 5-grams of
words (78 minima here, 112 there), splitting included. Classifier: a model of two classes that
fasttext trains here, dimension 100, pairs of words, 200,000 buckets; scores are compared. All in
megabytes a second of processor time, one thread each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quality_rules import read_documents

RULES = "gopher-repetition,gopher-quality,c4,fineweb"


def measure(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, and what came of it."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


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
        for text in documents:
            words = text.split()
            minima = RMinHash(112, 1)
            minima.update([" ".join(words[at : at + 5]) for at in range(len(words) - 4)])
            minima.digest()

    lines = [text.replace("\n", " ") for text in documents]
    with (folder / "train.txt").open("w") as file:
        for number, line in enumerate(lines):
            file.write(f"__label__{'hq' if number % 2 else 'cc'} {line[:3000]}\n")
    model = fasttext.train_supervised(
        str(folder / "train.txt"), wordNgrams=2, bucket=200_000, lr=1, epoch=25, thread=1, verbose=0
    )
    model.save_model(str(folder / "model.bin"))
    scored, scores = measure(lambda: [model.predict(line, k=2) for line in lines])
    found = {
        "rules": measure(judge),
        "signatures": (measure(sign)[0], None),
        "classifier": (scored, [dict(zip(a, map(float, b), strict=True)) for a, b in scores]),
    }
    (folder / "found.json").write_text(json.dumps(found))


def measure_ours(documents: list[str], model_path: Path) -> dict[str, tuple[float, Any]]:
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

    def clean(rules: str) -> Any:
        options = CleaningSettings(normalize=False, filter=False, dedup=False, rules=rules)
        return clean_block(block, ReadingSettings(), options, paths={})

    plain, whole = measure(lambda: clean(""))
    judged, kept = measure(lambda: clean(RULES))
    signer = _native.NearSigner(0.8, 5, 13, 6)
    signed, _ = measure(lambda: signer.sign(whole.text, whole.documents))
    model = _native.FastTextModel(str(model_path))
    scored, scores = measure(lambda: [model.predict(text) for text in texts])
    rows = [dict(zip(model.labels, row, strict=True)) for row in scores]
    num_kept = len(kept.documents) // _native.DOCUMENT_ROW_BYTES
    return {
        "rules": (judged - plain, num_kept),
        "signatures": (signed, None),
        "classifier": (scored, rows),
    }


def main() -> None:
    """Measure both, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--limit", type=int, default=200, help="documents")
    given = parser.parse_args()
    documents = read_documents(given.files, given.limit)
    size = sum(len(text.encode()) for text in documents) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = folder / "documents.json"
        asked.write_text(json.dumps(documents))
        command = [given.peer_python, __file__, "--measure", str(asked), str(folder)]
        subprocess.run(command, check=True)
        theirs = json.loads((folder / "found.json").read_text())
        ours = measure_ours(documents, folder / "model.bin")
    print(f"{len(documents)} documents, {size:.1f} MB\n")
    print("| what | lowtide, MB/s | peer, MB/s | times |\n|---|---|---|---|")
    peers = {"rules": "datatrove", "signatures": "rensa", "classifier": "fasttext"}
    for name, peer in peers.items():
        mine, other = size / ours[name][0], size / theirs[name][0]
        print(f"| {name} ({peer}) | {mine:.0f} | {other:.2f} | {mine / other:.0f} |")
    print(f"\nrules keep {ours['rules'][1]} documents here, {theirs['rules'][1]} there")
    differ = max(
        abs(mine[label.removeprefix("__label__")] - score)
        for mine, other in zip(ours["classifier"][1], theirs["classifier"][1], strict=True)
        for label, score in other.items()
    )
    print(f"scores differ by {differ:.1e} at most")


if __name__ == "__main__":
    measure_theirs() if sys.argv[1:2] == ["--measure"] else main()
