"""Parts of tokens by their spelling, against a plain definition; what one token has alone."""

import itertools
from collections import Counter

import numpy as np

from lowtide.model.config import GPTConfig
from lowtide.training import spelling
from lowtide.training.spelling import find_spelling, search_bytes, sharing_bytes

WORDS = [
    *("nation", "Nation", "nations", "national", "international", "inter", "notion", "motion"),
    *("emotion", "the", "The", "then", "them", "bananana", "anana", "1999", "1998", "..."),
    *(
        "stra\u00dfe",
        "Stra\u00dfen",
        "\u043d\u0430\u0446\u0438\u044f",
        "\u041d\u0430\u0446\u0438\u0438",
    ),
    *("\u4e2d\u56fd", "\u4e2d\u56fd\u4eba", "\u4eba", "\u4eba\u6c11"),
]
TOKENS = [
    *(bytes([n]) for n in range(256)),
    *(word.encode() for word in WORDS),
    *(b" " + word.encode() for word in WORDS),
    b"",
    b"   ",
    b"\xd0\xbd\xd0",  # half a character
    b"abcdefghijklmnopqrstuvwxyz",
    b"ABCDEFGHIJKLMNOPqrs",
]


def parts_of(token):
    """The parts of a token, written out."""
    if not token:
        return set()
    found = {"blank" if token[:1] == b" " else "no blank"}
    text = token.decode("utf-8", "surrogateescape").lstrip(" ")
    if text[:1].isupper():
        found.add("capital")
    word = text[:16].lower()[:16]
    if not word:
        return found
    marked = f"\x02{word}\x03"
    found.add(("word", word))
    for length in range(1, 6):
        for start in range(len(marked) - length + 1):
            part = marked[start : start + length]
            if length >= 3 or all(ord(character) >= 0x2E80 for character in part):
                found.add((length, part))
    return found


def expected(tokens):
    """Which tokens have each part that several have, as a multiset."""
    found = [parts_of(token) for token in tokens]
    counts = Counter(part for parts in found for part in parts)
    kept = {part for part, count in counts.items() if count > 1}
    return Counter(tuple(n for n, parts in enumerate(found) if part in parts) for part in kept), [
        len(parts & kept) for parts in found
    ]


def lists(numbers, ends):
    return [tuple(numbers[a:b]) for a, b in itertools.pairwise(ends)]


def test_parts_are_those_of_the_definition():
    tokens = [*TOKENS, b"", *(b"%dq" % number for number in range(640))]
    more = 3 * len(tokens)  # rows beyond the tokens, as a padded vocabulary has them
    spelling = find_spelling(tokens, len(tokens) + more)
    wanted, each = expected(tokens)
    assert Counter(lists(spelling.tokens, spelling.token_ends)) == wanted
    assert np.diff(spelling.part_ends).tolist() == each + [0] * more
    assert spelling.num_parts == sum(wanted.values()) > 20
    with np.errstate(divide="ignore"):
        scales = np.where(np.array(each) > 0, np.array(each, float) ** -0.5, 0)
    np.testing.assert_allclose(spelling.scales, [*scales, *[0] * more], rtol=1e-6)


def test_both_directions_say_the_same():
    spelling = find_spelling(TOKENS, 10 * len(TOKENS))
    of_tokens = {
        (token, part)
        for token, parts in enumerate(lists(spelling.parts, spelling.part_ends))
        for part in parts
    }
    of_parts = {
        (token, part)
        for part, tokens in enumerate(lists(spelling.tokens, spelling.token_ends))
        for token in tokens
    }
    assert of_tokens == of_parts
    assert len(of_tokens) == len(spelling.parts) == len(spelling.tokens) > 50


def test_a_word_in_another_form_has_its_parts():
    spelling = find_spelling(TOKENS, 10 * len(TOKENS))
    parts = lists(spelling.parts, spelling.part_ends)
    place = {token: n for n, token in enumerate(TOKENS)}
    blank, no_blank, capital = (set(parts[place[token]]) for token in (b"   ", b"\x00", b"A"))
    forms = blank | (capital - set(parts[place[b"a"]])) | (no_blank & capital)
    assert len(forms) == 3
    words = {token: set(parts[n]) - forms for token, n in place.items()}
    assert words[b" Nation"] == words[b"nation"] != set()
    assert words[b"nation"] & words[b" nations"]
    assert not words[b" nation"] & words[b" the"]
    assert set(parts[place[b" Nation"]]) & forms != set(parts[place[b" nation"]]) & forms
    # Only sixteen characters are looked at, so the rest of a long token makes no difference.
    assert words[b"ABCDEFGHIJKLMNOPqrs"] == words[b"abcdefghijklmnopqrstuvwxyz"] != set()


def test_the_commonest_parts_are_kept_where_there_are_too_many():
    words = [f"{first}{second}word".encode() for first in "abcdefgh" for second in "ijklmnop"]
    tokens = [*words, *words]  # each pair has parts of its own, all have others
    whole, cut = (find_spelling(tokens, 128, most_parts=most) for most in (10_000, 30))
    assert whole.num_parts > 100
    sizes = np.sort(np.diff(whole.token_ends))[::-1]
    assert np.sort(np.diff(cut.token_ends))[::-1].tolist() == sizes[:30].tolist()


def test_no_tokens_have_no_parts():
    spelling = find_spelling([b"", b" ", b"a"], 4)
    assert spelling.num_parts == 0 and not spelling.scales.any()
    assert find_spelling([], 4).num_parts == 0


def test_a_fingerprint_is_that_of_the_parts():
    one = find_spelling(TOKENS, len(TOKENS))
    assert one.fingerprint == find_spelling(list(TOKENS), len(TOKENS)).fingerprint
    assert one.fingerprint != find_spelling(TOKENS[::-1], len(TOKENS)).fingerprint


def test_lists_stay_within_what_is_said():
    # The most parts: sixteen different characters that are words by themselves, in two tokens.
    word = "".join(map(chr, range(0x4E00, 0x4E10))).encode()
    spelling = find_spelling([word, word], 1000)
    each = np.diff(spelling.part_ends)[0] + 1  # these have no capitals
    config = GPTConfig(vocab_size=64, context_length=8, num_layers=1, width=8, num_heads=1)
    # Its parts, its place, its scale.
    assert sharing_bytes(config).lists == 64 * (2 * 4 * each + 12)
    assert search_bytes(1) > 5 * 8 * each


def test_what_parts_take_is_said():
    for vocabulary, tied in ((100, True), (100, False), (300, True)):
        config = GPTConfig(vocabulary, 8, 1, 16, 1, tie_weights=tied)
        found = sharing_bytes(config)
        table = 4 * vocabulary * 16
        assert found.moments == (2 if tied else 4) * table and found.step == 3 * table
        assert found.lists == vocabulary * (8 * spelling._MOST_FOUND + 12)
        assert search_bytes(vocabulary) == vocabulary * (48 * spelling._MOST_FOUND + 256)
