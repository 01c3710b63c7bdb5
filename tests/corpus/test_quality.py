"""Rules of text quality: native equals plain Python, every limit counts, words are spaCy's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.quality import (
    LIMITS,
    MASKS,
    PRESETS,
    RuleLimit,
    canonical_limits,
    canonical_rules,
)
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.removals import RULES
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import Segment, TextBlock
from lowtide.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
import quality_oracle as oracle
from oracle import clean_document

GOOD = (
    "The tide was low that morning, and the boats lay on the sand with their masts aslant. "
    "Nobody had expected to have so much time before the water came back. "
    "We walked along the shore, past the old pier, to the rocks at the end of the bay. "
    "There the weed was green and thick. A child found a crab under one of the stones! "
    "Was it alive? It was, and it ran sideways into the next pool."
)


def judge(
    text: str, rules: str, *limits: str, **options: bool
) -> tuple[str | None, dict[str, int]]:
    """What is left of a document, and the counts of rules."""
    raw = text.encode(errors="replace")
    block = TextBlock(0, 0, "text", raw, (Segment(0, 0, 0, len(raw)),))
    chosen = CleaningSettings(
        **{"normalize": False, "filter": False, **options}, rules=rules, rule_limit=limits
    )
    cleaned = clean_block(block, ReadingSettings(separator=b""), chosen, paths={})
    counts = {rule: n for rule, (n, _) in zip(RULES, cleaned.counts, strict=True) if n}
    kept = len(cleaned.documents) > 0
    return (cleaned.text.tobytes().decode() if kept else None), counts


def split(text: str) -> list[str]:
    raw = text.encode()
    return [
        raw[begin : begin + 4 * chars].decode(errors="ignore")[:chars]
        for begin, chars, _ in _native.testing.split_words(raw)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [  # as spacy.blank("en") 3.8 splits them
        ("Mr. Smith can't pay $5.00, can he?", "Mr.|Smith|ca|n't|pay|$|5.00|,|can|he|?"),
        ("don’t they'll've cannot", "do|n’t|they|'ll|'ve|can|not"),
        ('well-known (1998) U.S. J. "A."', 'well|-|known|(|1998|)|U.S.|J.|"|A.|"'),
        ("5km 10% 3.5kg 100US$ 7pm", "5|km|10|%|3.5|kg|100|US$|7|pm"),
        ("5km² 6µg 7mbar 8km/h 2m3m 9\0m 9ⅿm", "5|km²|6|µg|7|mbar|8|km/h|2m3|m|9\0m|9ⅿm"),
        ("see http://a.com/b-c, or foo.bar/x-y.", "see|http://a.com/b-c|,|or|foo.bar/x-y|."),
        ("wait... what…no --well--yes", "wait|...|what|…|no|--well|--|yes"),
        ("a,b 1,000 1+1 x=y and/or A/B", "a|,|b|1,000|1|+|1|x|=|y|and/or|A|/|B"),
        ("end.Start e.g. this: 8) (8) foo):", "end|.|Start|e.g.|this|:|8)|(|8)|foo|):"),
        ("the dog's dogs' 'em 's", "the|dog|'s|dogs|'|'em|'s"),
        ("20°C. NATO. z. §5 +5 + C++", "20|°|C|.|NATO|.|z.|§|5|+5|+|C++"),
        ("«quoted» “text”—dash–dash", "«|quoted|»|“|text”—dash|–|dash"),
        ("at 93.184.216.34/a-b or 93.184.216/a-b", "at|93.184.216.34/a-b|or|93.184.216|/|a|-|b"),
        ("at a.org:80/a-b a.org:8/a-b", "at|a.org:80/a-b|a.org:8|/|a|-|b"),
        ("at a.org:12345/a-b a.org:123456/b", "at|a.org:12345/a-b|a.org:123456|/|b"),
        ("#a4]t&7{ (5km) 5%! %5%% a% %% 7m%", "#|a4]t&7|{|(|5|km|)|5|%|!|%|5%%|a%|%|%|7m%"),
        ("58) 8)# x8)a [5pm] {dont} 8D) #8%)", "58|)|8)|#|x8)a|[|5|pm|]|{|do|nt|}|8D|)|#|8|%|)"),
        ('"cannot"! 5]3kg& []{}# 5hPa!!', '"|can|not|"|!|5]3|kg|&|[|]|{|}|#|5|hPa|!|!'),
        ("", ""),
        ("\u00a0one\u2003two\u3000three \n", "one|two|three"),
    ],
)
def test_words_are_those_of_spacy(text: str, words: str) -> None:
    assert "|".join(split(text)) == words


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_words_are_the_text_without_whitespace(text: str) -> None:
    assert "".join(split(text)) == "".join(text.split())


def test_words_are_the_same_wherever_they_stand() -> None:
    # The splitter looks at 64 bytes at a time: words, marks and blanks cross every border.
    text = (
        "Mr. Tide can't pay $5.00, (well-known)\u00a0ünder 12 cats. A" + "w" * 70 + ", e.g. [4]b#"
    )
    words = split(text)
    for before in range(66):
        assert split("." * bool(before) + " " * before + text) == ["."] * bool(before) + words
        assert split("x" * before + " " + text) == ["x" * before] * bool(before) + words


UNITS = ["m", "mm", "km", "kg", "g", "mg", "MB", "GB", "kb", "gb", "T", "G", "M", "K", "%"]


@given(st.text('1357kmgGBTMK#&%()[]{}!?"', min_size=1, max_size=70))
def test_chunks_of_letters_digits_and_marks(chunk: str) -> None:
    marks = '#&()[]{}!?"%'
    rest = chunk.lstrip(marks)
    core = rest.rstrip(marks[:-1])
    inner = re.fullmatch(f"(.*[0-9])({'|'.join(UNITS)})", core)
    words = [*chunk[: len(chunk) - len(rest)], *(inner.groups() if inner else [core])]
    words = [word for word in [*words, *rest[len(core) :]] if word]
    found = _native.testing.split_words(chunk.encode())
    assert split(chunk) == words
    for word, (_, _, facts) in zip(words, found, strict=True):
        assert facts & 1 == any(map(str.isalpha, word))
        assert facts & 2 == 2 * any(map(str.isalnum, word))


@pytest.mark.parametrize(
    "phrase",
    [
        "{", "lOrem ipsum", "javaScript", "Use cookies", "uses cookies", "cookie policy",
        "terms of Use", "PRIVACY policy",
    ],
)  # fmt: skip
def test_phrases_are_found_anywhere(phrase: str) -> None:
    line = "low tide, again." * 4 + "\n"
    for size in (0, 1, 15, 16, 17, 4085, 4096, 4111, 4113):  # parts of 4 KiB are looked at
        text = (line * 80)[:size] + phrase
        kept, counts = judge(
            text, "c4", "c4.end-mark=0", "c4.min-line-words=0", "c4.min-sentences=0"
        )
        assert sum(n for rule, n in counts.items() if "_c4_" in rule) == 1, (size, counts)
        assert kept is None or phrase not in kept


PIECES = st.lists(
    st.sampled_from(
        [
            "the ", "tide ", "of ", "Mr. ", "be ", "\n", "\n\n", "\n\n\n", "- ", "• ",
            "... ", "…", "#",
            "12 likes\n", "SHOUT ", "12345\n", "Sign-in ", "Read more...\n", "items in cart",
            "It is low. ", "Is it? ", "Yes! ", "{", "lorem Ipsum ", "JavaScript ", "use cookies. ",
            "[12]", "[edit] ", "[citation needed]", "x" * 40, "é水 ",
            "\u2028", "\r\n", "\x0b", " ", "\t",
            "the tide of the tide of the tide of the tide of the tide of\n", GOOD, GOOD[:90] + "\n",
        ]
    ),
    min_size=1,
    max_size=40,
).map("".join)  # fmt: skip
NUMBERS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 0.9, 1.0, 2.0, 5.0, 40.0])


def expected(text: str, preset: str, limit: dict[str, float]) -> str | None:
    """What the oracle leaves; None where it removes the document."""
    words = split(text)
    if preset == "gopher-quality":
        return oracle.gopher_quality(text, words, limit)
    if preset == "gopher-repetition":
        return oracle.gopher_repetition(text, words, limit)
    if preset == "fineweb":
        return oracle.fineweb(text, words, limit)
    if preset == "refinedweb":
        return oracle.refinedweb(text, limit)
    return oracle.c4_lines(text, limit)


@pytest.mark.parametrize(
    "preset", ["gopher-quality", "gopher-repetition", "c4", "fineweb", "refinedweb"]
)
@given(text=PIECES, data=st.data())
@settings(max_examples=90, deadline=None)
def test_native_is_the_oracle(preset: str, text: str, data: st.DataObject) -> None:
    if not text.strip():
        return
    names = [limit.name for limit in LIMITS if limit.preset == preset]
    changed = data.draw(st.dictionaries(st.sampled_from(names), NUMBERS, max_size=6))
    if preset == "c4":
        changed["min-sentences"] = 0.0
    flags = [f"{preset}.{name}={value}" for name, value in changed.items()]
    left, counts = judge(text, preset, *flags)
    try:
        want = expected(text, preset, oracle.limits_of(preset, changed))
    except oracle.Removed as removed:
        assert left is None
        assert counts == {f"document_{removed}": 1}
    else:
        assert (left or "") == (want or "")


@pytest.mark.parametrize(
    "line",
    [
        "12 likes", "12likes", "12", "12 ", "12.5k likes", "1,2.3m  shares", "12k\tviews!",
        "7b views", "7x views", "12kk likes", "(3) followers", "... 3 quotes ...", "k likes",
        "12 likes more", "12 liked", "a 12 likes", "é12 likes", "…12 likes…", "12 LIKES",
        "0 downloads_", "/ 5 reposts", ": 5 bookmarks", "5: bookmarks", "12345", "1 2",
    ],
)  # fmt: skip
def test_counters_are_those_of_the_oracle(line: str) -> None:
    text = f"{GOOD}\n{line}\nand more of it"
    limits = {"max-removed-words": 0.0, "min-line-words": 0.0, "max-button-words": 0.0}
    flags = [f"refinedweb.{name}={value}" for name, value in limits.items()]
    left, _ = judge(text, "refinedweb", *flags)
    assert left == oracle.refinedweb(text, oracle.limits_of("refinedweb", limits))


NOISE = [
    "#tags ...", "- a point", "12 likes", "2024", "SHOUT THIS OUT", "Sign-in to read.",
    "This uses cookies.", "See javascript here.", "Cited here [1] it is.", "Short line.", "A",
    "The same words again and again in this line of text here.",
    "The same words again and again in this line of text here.",
]  # fmt: skip
STRICT = {"short-line-chars": 1e6, "min-chars": 1e6, "max-button-words": 10.0}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.full_name)
def test_every_limit_decides_something(limit: RuleLimit) -> None:
    """With all others switched off, a strict one leaves less than none."""
    text = "\n".join([GOOD, *NOISE]) + "\n\nA paragraph of it.\n\nA paragraph of it."
    text += {"lorem-ipsum": "\nHere is lorem ipsum.", "curly-bracket": "\nHere is a {."}.get(
        limit.name, ""
    )
    switches = ("short-line-chars", "max-short-lines", "min-chars", "min-paragraphs")
    others = [
        f"{other.full_name}=0"
        for other in LIMITS
        if other.preset == limit.preset
        and other is not limit
        and not (limit.name in switches and other.name in switches)
        and not (limit.name == "max-removed-words" and other.name == "digits")
    ]
    strict = STRICT.get(limit.name, 1e6 if limit.name.startswith("min-") else 1e-9)
    off, _ = judge(text, limit.preset, f"{limit.full_name}=0", *others)
    on, _ = judge(text, limit.preset, f"{limit.full_name}={strict:g}", *others)
    assert on != off


def test_good_text_stays_as_it_is() -> None:
    text = "\n".join([GOOD] + [GOOD.replace("tide", word) for word in ("sea", "ebb", "flood")])
    for preset in ("gopher-quality", "c4", "fineweb", "refinedweb"):
        assert judge(text, preset) == (text, {})


def test_presets_are_applied_in_the_order_given() -> None:
    """C4 takes the lines away that FineWeb would count."""
    text = GOOD + "\n" + "\n".join(["menu", "home"] * 9)
    assert judge(text, "fineweb,c4")[0] is None
    assert judge(text, "c4,fineweb")[0] == GOOD


def test_lines_are_counted_only_of_documents_that_stay() -> None:
    left, counts = judge("no mark here at all\n" + GOOD, "c4")
    assert (left, counts) == (GOOD, {"line_c4_end_mark": 1})
    left, counts = judge("no mark here at all\nOne sentence that is kept.", "c4")
    assert (left, counts) == (None, {"document_c4_few_sentences": 1})


def test_lines_that_stay_are_hashed_as_they_are() -> None:
    """Text that C4 rewrites has the hashes of that text, else duplicates would not be found."""
    raw = ("no mark\n" + GOOD + " [1].\n\nAnother sentence with enough words. ").encode()

    def clean(data: bytes, rules: str) -> _native.CleanedBlock:
        block = TextBlock(0, 0, "text", data, (Segment(0, 0, 0, len(data)),))
        options = CleaningSettings(rules=rules)
        return clean_block(block, ReadingSettings(separator=b""), options, paths={})

    cleaned = clean(raw, "c4")
    again = clean(cleaned.text.tobytes(), "")
    assert again.text == cleaned.text
    assert again.hashes == cleaned.hashes
    assert again.documents.tobytes()[16:] == cleaned.documents.tobytes()[16:]


def test_a_part_of_a_larger_document_is_not_judged() -> None:
    raw = b"too short for any rule"
    block = TextBlock(0, 0, "text", raw, (Segment(0, 0, 0, len(raw)),), continues=True)
    options = CleaningSettings(rules="gopher")
    cleaned = clean_block(block, ReadingSettings(separator=b""), options, paths={})
    assert cleaned.text == raw
    assert cleaned.counts[RULES.index("rules_unjudged")] == (1, len(raw))


def test_a_document_with_more_words_than_are_held_stays() -> None:
    left, counts = judge("a b " * 600_000, "gopher")
    assert left is not None
    assert counts == {"rules_unjudged": 1}


def test_what_rules_leave_is_filtered_again() -> None:
    text = "a line without a mark at its end\nA few words."
    left, counts = judge(text, "c4", "c4.min-sentences=0", filter=True, normalize=True)
    assert (left, counts) == (None, {"line_c4_end_mark": 1, "document_too_short": 1})


@given(text=PIECES)
@settings(max_examples=100, deadline=None)
def test_all_presets_survive_any_order_after_cleaning(text: str) -> None:
    left, _ = judge(
        text, ",".join(PRESETS), *(f"{limit.full_name}=0" for limit in LIMITS), normalize=True
    )
    clean = clean_document(text.encode())
    assert (left or "").split() == clean.split()


def test_names_have_one_form() -> None:
    assert canonical_rules(" gopher ,c4,") == "gopher-repetition,gopher-quality,c4"
    assert canonical_limits(["c4.policy=0.0", "c4.citations=1"], "c4") == (
        "c4.citations=1",
        "c4.policy=0",
    )
    same = CleaningSettings(rules="gopher", rule_limit=("gopher-quality.min-words=50.0",))
    other = CleaningSettings(
        rules="gopher-repetition,gopher-quality", rule_limit=("gopher-quality.min-words=5e1",)
    )
    assert same == other


@pytest.mark.parametrize(
    ("rules", "limits", "message"),
    [
        ("gofer", (), "--rules 'gofer' is not one of gopher, gopher-quality"),
        ("c4,c4", (), "names c4 twice"),
        ("gopher,gopher-quality", (), "names gopher-quality twice"),
        ("c4", ("c4.polcy=1",), "is not PRESET.NAME=NUMBER with a name there is"),
        ("c4", ("c4.policy",), "is not PRESET.NAME=NUMBER"),
        ("c4", ("c4.policy=-1",), "has no number of 0 or more"),
        ("c4", ("c4.policy=nan",), "has no number of 0 or more"),
        ("c4", ("c4.policy=1", "c4.policy=0"), "names c4.policy twice"),
        ("c4", ("fineweb.max-newlines=1",), "is for rules that are not applied"),
    ],
)
def test_names_that_are_none_are_refused(rules: str, limits: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CleaningSettings(rules=rules, rule_limit=limits)


def test_the_guide_has_every_limit_with_its_number() -> None:
    page = (Path(__file__).parents[2] / "docs" / "quality.md").read_text()
    for limit in LIMITS:
        assert f"| `{limit.full_name}` | {limit.value:g} | {limit.text} |" in page
    for name in (*PRESETS, *MASKS):
        assert page.count(f"\n| `{name}` |") == 1
    assert page.count("\n| `") == len(LIMITS) + len(PRESETS) + len(MASKS)
