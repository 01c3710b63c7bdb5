"""Compare the decisions of `--rules` with datatrove's filters, document by document.

    python benchmarks/quality_rules.py --peer-python /tmp/peers/bin/python corpus.txt more.jsonl

`--peer-python` is an interpreter that has datatrove and spaCy, in an environment of its own: their
packages collide with ours. Each preset judges every document on its own; C4 is compared by the text
that it leaves as well. Prints the share of equal decisions, and what differs by rule.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEPARATOR = "<|endoftext|>"
PRESETS = ("gopher-quality", "gopher-repetition", "c4", "fineweb")
SAME_RULES = {  # their names in datatrove
    "document_gopher_min_words": "gopher_short_doc",
    "document_gopher_max_words": "gopher_long_doc",
    "document_gopher_min_word_chars": "gopher_below_avg_threshold",
    "document_gopher_max_word_chars": "gopher_above_avg_threshold",
    "document_gopher_hashes": "gopher_too_many_hashes",
    "document_gopher_ellipses": "gopher_too_many_ellipsis",
    "document_gopher_bullet_lines": "gopher_too_many_bullets",
    "document_gopher_ellipsis_lines": "gopher_too_many_end_ellipsis",
    "document_gopher_alpha_words": "gopher_below_alpha_threshold",
    "document_gopher_stop_words": "gopher_enough_stop_words",
    "document_repeated_paragraphs": "dup_para_frac",
    "document_repeated_paragraph_chars": "dup_para_char_frac",
    "document_repeated_lines": "dup_line_frac",
    "document_repeated_line_chars": "dup_line_char_frac",
    **{f"document_top_{n}_gram": f"top_{n}_gram" for n in (2, 3, 4)},
    **{f"document_repeated_{n}_grams": f"duplicated_{n}_n_grams" for n in range(5, 11)},
    "document_c4_lorem_ipsum": "lorem_ipsum",
    "document_c4_curly_bracket": "curly_bracket",
    "document_c4_few_sentences": "too_few_sentences",
    "document_fineweb_empty": "empty",
    "document_fineweb_end_lines": "line_punct_ratio",
    "document_fineweb_short_lines": "short_line_ratio",
    "document_fineweb_line_chars": "char_dup_ratio",
    "document_fineweb_newlines": "list_ratio",
}


def read_documents(paths: list[Path], limit: int) -> list[str]:
    """Documents of text files (between marks) and jsonl files, as the rules see them: clean."""
    from lowtide.corpus.settings import CleaningSettings

    options = CleaningSettings(filter=False, dedup=False)
    documents: list[str] = []
    for path in paths:
        if path.suffix == ".jsonl":
            rows = (json.loads(line)["text"] for line in path.open() if line.strip())
        else:
            rows = iter(path.read_text(errors="replace").split(SEPARATOR))
        for text in rows:
            cleaned, _ = clean(text, options)
            if cleaned is not None and cleaned.strip():
                documents.append(cleaned)
            if len(documents) >= limit:
                return documents
    return documents


def clean(text: str, options: Any) -> tuple[str | None, str | None]:
    """The text left of a document, and the rule that removed it."""
    from lowtide.corpus.cleaning import clean_block
    from lowtide.corpus.reading import ReadingSettings
    from lowtide.corpus.removals import RULES
    from lowtide.corpus.textblocks import Segment, TextBlock

    raw = text.encode()
    block = TextBlock(0, 0, "text", raw, (Segment(0, 0, 0, len(raw)),))
    cleaned = clean_block(block, ReadingSettings(separator=b""), options, paths={})
    for rule, (count, _) in zip(RULES, cleaned.counts, strict=True):
        if count and rule.startswith("document_"):
            return None, rule
    return bytes(cleaned.text).decode(), None


def decide_ours(documents: list[str]) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """Decisions of every preset, and its speed in megabytes per second."""
    from lowtide.corpus.settings import CleaningSettings

    decisions: dict[str, list[Any]] = {}
    rates: dict[str, float] = {}
    size = sum(len(text.encode()) for text in documents)
    for preset in (*PRESETS, ",".join(("gopher-repetition", "gopher-quality", "c4", "fineweb"))):
        options = CleaningSettings(normalize=False, filter=False, dedup=False, rules=preset)
        begin = time.process_time()
        found = [clean(text, options) for text in documents]
        rates[preset] = size / 1e6 / (time.process_time() - begin)
        decisions[preset] = [(text, SAME_RULES.get(rule or "", rule)) for text, rule in found]
    return decisions, rates


def decide_theirs() -> None:
    """Read documents as JSON, write datatrove's decisions; runs in the peer's environment."""
    from datatrove.data import Document  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.filters import (  # pyright: ignore[reportMissingImports]
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = {
        "gopher-quality": GopherQualityFilter(),
        "gopher-repetition": GopherRepetitionFilter(),
        "c4": C4QualityFilter(),
        "fineweb": FineWebQualityFilter(),
    }
    documents = json.loads(Path(sys.argv[2]).read_text())
    decisions: dict[str, list[Any]] = {}
    seconds: dict[str, float] = {}
    for name, judge in filters.items():
        begin = time.process_time()
        rows: list[Any] = []
        for text in documents:
            document = Document(text=text, id="0")
            verdict = judge.filter(document)
            kept = verdict if isinstance(verdict, bool) else verdict[0]
            rows.append((document.text, None) if kept else (None, verdict[1]))
        decisions[name] = rows
        seconds[name] = time.process_time() - begin
    Path(sys.argv[3]).write_text(json.dumps({"decisions": decisions, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--show", type=int, default=3)
    given = parser.parse_args()
    documents = read_documents(given.files, given.limit)
    size = sum(len(text.encode()) for text in documents)
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "documents.json", Path(folder) / "decisions.json"
        asked.write_text(json.dumps(documents))
        command = [given.peer_python, __file__, "--decide", str(asked), str(answered)]
        subprocess.run(command, check=True)
        theirs = json.loads(answered.read_text())
    ours, rates = decide_ours(documents)
    print(f"{len(documents)} documents, {size / 1e6:.1f} MB")
    for preset in PRESETS:
        pairs = list(zip(ours[preset], theirs["decisions"][preset], strict=True))
        same = sum((mine[0] is None) == (other[0] is None) for mine, other in pairs)
        rules = sum(mine[1] == other[1] for mine, other in pairs)
        texts = sum(mine[0] == other[0] for mine, other in pairs)
        dropped = sum(other[0] is None for _, other in pairs)
        same, rules, texts = (100 * count / len(pairs) for count in (same, rules, texts))
        print(
            f"{preset:18} drops {dropped}, same decision {same:.2f} %, same rule {rules:.2f} %, "
            f"same text {texts:.2f} %, {rates[preset]:.0f} MB/s against "
            f"{size / 1e6 / theirs['seconds'][preset]:.2f}"
        )
        differ = collections.Counter(
            (str(mine[1]), str(other[1])) for mine, other in pairs if mine[1] != other[1]
        )
        for (mine, other), count in differ.most_common(given.show):
            print(f"    {count} x ours: {mine}, datatrove: {other}")
    together = list(rates)[-1]
    print(f"all four in one pass: {rates[together]:.0f} MB/s of processor time")


if __name__ == "__main__":
    decide_theirs() if sys.argv[1:2] == ["--decide"] else main()
