"""Rules of text quality once more, in plain Python: the truth the native core is held to.

Each function returns the rule that removes a document, or the text that stays. Words are given: the
splitter has tests of its own.
"""

from __future__ import annotations

import re
from collections import Counter

from lowtide.corpus.quality import LIMITS

MARKS = set(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
) | {chr(code) for first, last in ((0, 9), (11, 32), (127, 160)) for code in range(first, last)}
ENDS = tuple(".?!。！？؟।…"[:-1])
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICIES = "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"


class Removed(Exception):  # noqa: N818
    """A rule removed the document."""


def limits_of(preset: str, changed: dict[str, float]) -> dict[str, float]:
    values = {limit.name: limit.value for limit in LIMITS if limit.preset == preset}
    return {**values, **changed}


def _most(value: float, limit: float, rule: str) -> None:
    if limit and value > limit:
        raise Removed(rule)


def _least(value: float, limit: float, rule: str) -> None:
    if limit and value < limit:
        raise Removed(rule)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def gopher_quality(text: str, words: list[str], limit: dict[str, float]) -> str:
    real = [word for word in words if any(char not in MARKS for char in word)]
    _least(len(real), limit["min-words"], "gopher_min_words")
    _most(len(real), limit["max-words"], "gopher_max_words")
    mean = _share(sum(map(len, real)), len(real))
    _least(mean, limit["min-word-chars"], "gopher_min_word_chars")
    _most(mean, limit["max-word-chars"], "gopher_max_word_chars")
    _most(_share(text.count("#"), len(words)), limit["max-hashes"], "gopher_hashes")
    ellipses = text.count("...") + text.count("…")
    _most(_share(ellipses, len(words)), limit["max-ellipses"], "gopher_ellipses")
    lines = text.splitlines()
    bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines)
    _most(_share(bullets, len(lines)), limit["max-bullet-lines"], "gopher_bullet_lines")
    ended = sum(line.rstrip().endswith(("...", "…")) for line in lines)
    _most(_share(ended, len(lines)), limit["max-ellipsis-lines"], "gopher_ellipsis_lines")
    alpha = sum(any(char.isalpha() for char in word) for word in words)
    _least(_share(alpha, len(words)), limit["min-alpha-words"], "gopher_alpha_words")
    _least(len(STOP_WORDS & set(words)), limit["min-stop-words"], "gopher_stop_words")
    return text


def _repeated(parts: list[str]) -> tuple[int, int]:
    counts = Counter(parts)
    again = sum(count - 1 for count in counts.values())
    return again, sum(len(part) * (count - 1) for part, count in counts.items())


def gopher_repetition(text: str, words: list[str], limit: dict[str, float]) -> str:
    paragraphs = re.split(r"\n{2,}", text.strip())
    again, chars = _repeated(paragraphs)
    _most(again / len(paragraphs), limit["max-paragraphs"], "repeated_paragraphs")
    _most(chars / len(text), limit["max-paragraph-chars"], "repeated_paragraph_chars")
    lines = re.split(r"\n+", text)
    again, chars = _repeated(lines)
    _most(again / len(lines), limit["max-lines"], "repeated_lines")
    _most(chars / len(text), limit["max-line-chars"], "repeated_line_chars")
    for n in (2, 3, 4):
        grams = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
        if grams:
            gram, count = Counter(grams).most_common(1)[0]
            _most(len(gram) * count / len(text), limit[f"max-top-{n}-gram"], f"top_{n}_gram")
    for n in range(5, 11):
        seen: set[tuple[str, ...]] = set()
        at = chars = 0
        while at < len(words) - n + 1:
            gram = tuple(words[at : at + n])
            chars += len("".join(gram)) if gram in seen else 0
            at += n if gram in seen else 1
            seen.add(gram)
        _most(chars / len(text), limit[f"max-{n}-grams"], f"repeated_{n}_grams")
    return text


def c4_lines(text: str, limit: dict[str, float]) -> str:
    """C4 but for the sentences, which are counted by words."""
    kept: list[str] = []
    for line in map(str.strip, text.splitlines()):
        words = line.split()
        if limit["max-word-chars"] and any(len(word) > limit["max-word-chars"] for word in words):
            continue
        if limit["citations"]:
            line = re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line)
        if limit["end-mark"] and (not line.endswith(tuple(".?!\"'")) or line.endswith("...")):
            continue
        if len(words) < limit["min-line-words"]:
            continue
        lowered = line.lower()
        if limit["lorem-ipsum"] and "lorem ipsum" in lowered:
            raise Removed("c4_lorem_ipsum")
        if limit["javascript"] and "javascript" in lowered:
            continue
        if limit["curly-bracket"] and "{" in line:
            raise Removed("c4_curly_bracket")
        if limit["policy"] and re.search(POLICIES, lowered):
            continue
        kept.append(line)
    return "\n".join(kept).strip()


def fineweb(text: str, words: list[str], limit: dict[str, float]) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise Removed("fineweb_empty")
    ended = sum(line.endswith(ENDS) for line in lines)
    _least(ended / len(lines), limit["min-end-lines"], "fineweb_end_lines")
    short = sum(len(line) <= limit["short-line-chars"] for line in lines)
    _most(short / len(lines), limit["max-short-lines"], "fineweb_short_lines")
    _most(
        _repeated(lines)[1] / len(text.replace("\n", "")),
        limit["max-line-chars"],
        "fineweb_line_chars",
    )
    _most(_share(text.count("\n"), len(words)), limit["max-newlines"], "fineweb_newlines")
    return text


def refinedweb(text: str, limit: dict[str, float]) -> str:
    counter = re.compile(
        r"^\W*\d(?:,|\.|\d)*(?:k|m|b)?[ \t]+(?:likes|shares|comments|retweets|reposts|quotes|"
        r"bookmarks|upvotes|downvotes|downloads|views|followers)\W*$"
    )
    kept: list[str] = []
    for line in text.split("\n"):
        if line:
            if limit["max-capitals"] and (
                sum(map(str.isupper, line)) / len(line) > limit["max-capitals"]
            ):
                continue
            if limit["digits"] and all(map(str.isdigit, line)):
                continue
            if limit["counters"] and counter.search(line.lower()):
                continue
            if len(line.split()) < limit["min-line-words"]:
                continue
            if limit["max-button-words"] and len(line.split()) <= limit["max-button-words"]:
                while "items in cart" in line:
                    line = line.replace("items in cart", "", 1)
                line = line.removesuffix("Read more...").removeprefix("Sign-in")
        kept.append(line)
    after = "\n".join(kept).strip()
    before_words, after_words = len(text.split()), len(after.split())
    if not after_words:
        raise Removed("refinedweb_removed_words")
    _most(
        (before_words - after_words) / before_words,
        limit["max-removed-words"],
        "refinedweb_removed_words",
    )
    return after
