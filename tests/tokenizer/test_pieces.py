"""SentencePiece-style BPE natively: the ids of the package on any text, whole and in parts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, trainers
from tokenizers import pre_tokenizers as pre

from lowtide.errors import BudgetError
from lowtide.tokenizer import Tokenizer, package, pieces
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.needs import tokenizer_needs
from lowtide.tokenizer.pieces import PieceEncoder, PieceRules
from lowtide.tokenizer.vocabulary import AddedToken

BLANK = "▁"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
PREPEND = {"type": "Prepend", "prepend": BLANK}
LLAMA = {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}}
GEMMA = {
    "normalizer": REPLACE,
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    },
}


def metaspace(scheme: str) -> dict[str, Any]:
    section = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": False}
    return {"normalizer": None, "pre_tokenizer": section}


KINDS = {
    "llama": LLAMA,
    "gemma": GEMMA,
    **{scheme: metaspace(scheme) for scheme in ("always", "first", "never")},
}
TEXT = (
    "The sea comes in and goes out, twice a day; the moon is why.  And the   sea is the sea.\n"
    "Das Meer kommt und geht, zweimal am Tag: größer und kleiner.\n\tdef f(x):\n        return x\n"
    "Море приходит и уходит дважды в день. 海が来て、去る。一日に二回。 바다가 온다 😀 ½ ﬁ\n"
) * 3


def added(content: str, id: int, **flags: bool) -> dict[str, Any]:
    names = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return {"id": id, "content": content, **{n: flags.get(n, n == "special") for n in names}}


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """A vocabulary learned from a few lines, with runs of blanks and characters left to bytes."""
    tokenizer = HuggingFace(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="always", split=True)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=first, limit_alphabet=90, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    contents = json.loads(tokenizer.to_str())
    contents["pre_tokenizer"] = None
    model = contents["model"]
    for left, right in ((BLANK, BLANK), (BLANK * 2, BLANK * 2), ("\n", BLANK[:0] + "\n")):
        if left in model["vocab"] and right in model["vocab"]:
            model["vocab"].setdefault(left + right, len(model["vocab"]))
            model["merges"].append([left, right])
    contents["added_tokens"] = [added(text, id) for id, text in enumerate(first[:3])]
    return contents


def both(contents: dict[str, Any], folder: Path) -> tuple[Tokenizer, HuggingFace]:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(contents, ensure_ascii=False))
    return Tokenizer.load(path), HuggingFace.from_file(str(path))


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, learned: dict[str, Any], tmp_path_factory: Any
) -> tuple[Tokenizer, HuggingFace]:
    return both({**learned, **KINDS[request.param]}, tmp_path_factory.mktemp("pieces"))


def require_equal(pair: tuple[Tokenizer, HuggingFace], text: str) -> None:
    ours, theirs = pair
    for special in (True, False):
        theirs.encode_special_tokens = not special
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special="allow" if special else "text").tolist() == wanted


def test_ids_are_those_of_the_package(pair: tuple[Tokenizer, HuggingFace]) -> None:
    assert pair[0].package is not None and pair[0].package._pieces is not None
    texts = ["", " ", "  ", "a", " a", "<s>", "<s> the sea</s>the<s><s>", "▁the ▁ sea", "the sea "]
    for text in (*texts, TEXT, TEXT[::-1], "x" * 40 + " " * 40, "é😀" * 20, "\x00\n\r\t"):
        require_equal(pair, text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=st.text(st.sampled_from("  ▁abdehnostuy\n<s>/é海😀б가.\t") | st.characters(codec="utf-8"))
)
def test_ids_of_any_text_are_those_of_the_package(
    pair: tuple[Tokenizer, HuggingFace], text: str
) -> None:
    require_equal(pair, text)


def test_text_in_parts_has_the_ids_of_the_whole(
    pair: tuple[Tokenizer, HuggingFace], tmp_path: Path
) -> None:
    ours, theirs = pair
    text = (TEXT + "<s>the  sea</s>" + "海が来て去る" * 30) * 4
    theirs.encode_special_tokens = False
    wanted = theirs.encode(text, add_special_tokens=False).ids
    for size in (40, 333, 5000):
        limits = EncodingLimits(native_characters=size, piece_characters=100)
        small = Tokenizer(ours.data, limits=limits)
        assert small.encode(text, special="allow").tolist() == wanted
        parts = [text[i : i + 77] for i in range(0, len(text), 77)]
        assert list(small.encode_iterable(parts)) == wanted
    (tmp_path / "text.txt").write_bytes(text.encode())
    count = ours.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin")
    found = np.fromfile(tmp_path / "ids.bin", "<u2")
    assert count == len(wanted) and found.tolist() == wanted
    batch = ours.encode_batch([text, "the"], special="allow", num_workers=2)
    assert batch[0].tolist() == wanted


def test_pieces_longer_than_a_chunk_and_halves_of_characters(
    pair: tuple[Tokenizer, HuggingFace],
) -> None:
    require_equal(pair, "theseacomesin" * 11_000 + "海😀" * 3_000)


def test_added_tokens_follow_their_rules(learned: dict[str, Any], tmp_path: Path) -> None:
    new = len(learned["model"]["vocab"])
    rows = [
        *learned["added_tokens"],
        added("<|user|>", new, special=False, rstrip=True),
        added("<|end|>", new + 1, lstrip=True),
        added("<|plain|>", new + 2, special=False),
    ]
    pair = both({**learned, **LLAMA, "added_tokens": rows}, tmp_path)
    assert pair[0].package is not None and pair[0].package._pieces is not None
    text = "the <|user|>  the sea <|end|> a<|plain|>the \n <|end|><|user|>\n▁ x <|plain|> <|plain|>"
    require_equal(pair, text)
    require_equal(pair, f"{text} " * 40)
    encoder = pair[0].package._pieces
    long = f"{text} " * 40
    pair[1].encode_special_tokens = False
    wanted = pair[1].encode(long, add_special_tokens=False).ids
    for end in range(60, 120):  # whatever is cut, where it is cut
        cut = encoder.last_cut(long[:end])
        ids = [encoder.encode(long[:cut], allow=True), encoder.encode(long[cut:], allow=True,
               is_first=False)]  # fmt: skip
        assert np.concatenate(ids).tolist() == wanted, (cut, long[:cut])


@pytest.fixture(scope="module")
def gemma(learned: dict[str, Any]) -> dict[str, Any]:
    """As Gemma's file is: runs of line ends and of blanks are added tokens and made by merges."""
    contents = copy.deepcopy({**learned, **GEMMA})
    vocab, merges = contents["model"]["vocab"], contents["model"]["merges"]
    vocab["\t"] = vocab.pop("<0x09>")  # there is no other token for tabs
    rows = contents["added_tokens"]
    for character in ("\n", BLANK):
        for size in range(1, 6):
            run = character * size
            vocab.setdefault(run, max(vocab.values()) + 1)
            for left in range(1, size):
                pair = [character * left, character * (size - left)]
                if pair not in merges:
                    merges.append(pair)
            if run != BLANK:
                rows.append(added(run, vocab[run], special=False))
    for text in ("<", "<s", "t", "<t", "e", "<te", ">", "<te>"):
        vocab.setdefault(text, max(vocab.values()) + 1)
    merges += [["<", "t"], ["<t", "e"], ["<te", ">"], ["<", "s"], ["<s", ">"]]
    rows.append(added("<te>", vocab["<te>"]))
    return contents


def test_added_tokens_that_are_made_by_merges_too(gemma: dict[str, Any], tmp_path: Path) -> None:
    pair = both(gemma, tmp_path)
    assert pair[0].package is not None and pair[0].package._pieces is not None
    texts = [
        "a  b   c      d", "\n\n\n\n\n\n\na\tb\t\n ", f"a{BLANK}{BLANK}b {BLANK} {BLANK * 7}",
        "<s><te>the<t<te>e><s", "x<s>\n</s>\n\n  <unk>", TEXT, TEXT.replace(" ", "  \n"),
    ]  # fmt: skip
    for text in texts:
        require_equal(pair, text)
    long = "".join(texts) * 3
    wanted = pair[0].encode(long).tolist()
    for size in (20, 64, 333):
        small = Tokenizer(pair[0].data, limits=EncodingLimits(native_characters=size))
        assert small.encode(long).tolist() == wanted


def test_added_tokens_may_contain_blanks(learned: dict[str, Any], tmp_path: Path) -> None:
    rows, new = learned["added_tokens"], len(learned["model"]["vocab"])
    contents = ["  ", "sea is", f"{BLANK}out", " the", "day; "]
    rows = [*rows, *(added(text, new + place) for place, text in enumerate(contents))]
    text = f"twice a day;  day; the sea is  out{BLANK}out   the  the sea  is{BLANK * 3}out " * 20
    for name, kind in KINDS.items():
        pair = both({**learned, **kind, "added_tokens": rows}, tmp_path)
        assert pair[0].package is not None and pair[0].package._pieces is not None, name
        require_equal(pair, text)
        wanted = pair[0].encode(text).tolist()
        for size in range(16, 40):
            small = Tokenizer(pair[0].data, limits=EncodingLimits(native_characters=size))
            assert small.encode(text).tolist() == wanted, (name, size)


def test_no_cut_in_an_added_token_of_which_only_the_beginning_is_there(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    rows, new = learned["added_tokens"], len(learned["model"]["vocab"])
    rows = [*rows, added("海<。>", new, special=False)]
    pair = both({**learned, **GEMMA, "added_tokens": rows}, tmp_path)
    text = ("去" * 17 + "海<。>" * 40) * 5
    require_equal(pair, text)
    wanted = pair[0].encode(text).tolist()
    for size in range(16, 60):
        small = Tokenizer(pair[0].data, limits=EncodingLimits(native_characters=size))
        assert small.encode(text).tolist() == wanted, size


def test_a_special_token_that_is_a_character_is_one_as_text_too(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    vocab = learned["model"]["vocab"]
    rows = [*learned["added_tokens"], added("y", vocab["y"])]
    pair = both({**learned, **GEMMA, "added_tokens": rows}, tmp_path)
    assert pair[0].package is not None and pair[0].package._pieces is not None
    require_equal(pair, "why a day, by y")


def test_no_package_is_needed_and_nothing_is_said(
    learned: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ours, _ = both({**learned, **LLAMA}, tmp_path)
    monkeypatch.setattr(package, "import_package", lambda *_, **__: pytest.fail("package"))
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint and len(again.encode("the sea")) > 0
    assert again.token_bytes(int(again.encode("the")[0])).startswith(b" ")
    assert capsys.readouterr().err == "" and again.data.reason == ""
    assert tokenizer_needs(tmp_path).table_bytes > 0


def change(contents: dict[str, Any], **model: Any) -> dict[str, Any]:
    changed = copy.deepcopy(contents)
    changed["model"].update(model)
    return changed


def test_what_native_code_does_not_know_is_left_to_the_package(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    whole = {**learned, **LLAMA}
    assert PieceRules.of(whole) is not None
    across = change(whole)
    across["model"]["vocab"][f"e{BLANK}"] = len(across["model"]["vocab"])
    across["model"]["merges"].append(["e", BLANK])
    no_bytes = change(whole)
    del no_bytes["model"]["vocab"]["<0x8A>"]
    of_bytes = change(whole)
    of_bytes["model"]["vocab"]["<0x41><0x42>"] = 10_000
    of_bytes["model"]["merges"].append(["<0x41>", "<0x42>"])
    rows, new = whole["added_tokens"], len(whole["model"]["vocab"])
    assert PieceRules.of({**whole, "added_tokens": [*rows, added("ab", new)]}) is not None
    others = [
        across,
        no_bytes,
        of_bytes,
        change(whole, byte_fallback=False),
        change(whole, ignore_merges=True),
        change(whole, dropout=0.1),
        {**learned, "normalizer": {"type": "NFKC"}},
        {**learned, "normalizer": {"type": "Sequence", "normalizers": [REPLACE, PREPEND]}},
        {**learned, **metaspace("first"), "normalizer": REPLACE},
        {**whole, "added_tokens": [*rows, added("a b", new, normalized=True)]},
        {**whole, "added_tokens": [*rows, added("ab", new, normalized=True)]},
        {**whole, "added_tokens": [*rows, added("ab", new, single_word=True)]},
        {**whole, "added_tokens": [*rows, added("ab", new + 1)]},
    ]
    assert [PieceRules.of(contents) for contents in others] == [None] * len(others)
    pair = both(across, tmp_path)
    assert pair[0].package is not None and pair[0].package._pieces is None
    require_equal(pair, TEXT)


@pytest.mark.parametrize(
    ("kind", "flags", "fits"),
    [
        ("gemma", (), True),  # blanks are replaced, and nothing is put before
        ("gemma", ("normalized",), True),
        ("gemma", ("lstrip", "rstrip"), True),  # found before blanks are replaced
        ("gemma", ("normalized", "lstrip"), False),
        ("gemma", ("normalized", "rstrip"), False),
        ("llama", ("lstrip",), True),
        ("llama", ("normalized",), False),
        ("first", ("normalized",), True),  # nothing is normalized
        ("first", ("normalized", "lstrip", "rstrip"), True),
    ],
)
def test_added_tokens_that_normalizing_could_hide_or_show_are_not_ours(
    learned: dict[str, Any], kind: str, flags: tuple[str, ...], fits: bool
) -> None:
    rows, new = learned["added_tokens"], len(learned["model"]["vocab"])
    row = added("ab", new, **dict.fromkeys(flags, True))
    rules = PieceRules.of({**learned, **KINDS[kind], "added_tokens": [*rows, row]})
    assert (rules is not None) == fits


def test_text_without_a_place_to_cut_is_refused_once_it_is_too_long(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    whole, _ = both({**learned, **LLAMA}, tmp_path)
    limits = EncodingLimits(native_characters=1000, most_characters=4000)
    ours = Tokenizer(whole.data, limits=limits)
    pairs = ours.package._pieces.pairs  # pyright: ignore
    letters = next(pair[0] for pair in pairs if pair[0] == pair[1] and pair != "  ")
    assert len(ours.encode(letters * 3000)) > 0
    with pytest.raises(BudgetError, match="no place to cut"):
        ours.encode(letters * 9000)


@pytest.mark.parametrize(("split", "ours"), [(False, True), (True, False), (None, False)])
def test_words_of_metaspace_are_the_packages(
    learned: dict[str, Any], split: bool | None, ours: bool
) -> None:
    parts = metaspace("first")
    parts["pre_tokenizer"] |= {"split": split}
    if split is None:  # as the package has it
        del parts["pre_tokenizer"]["split"]
    assert (PieceRules.of({**learned, **parts}) is not None) is ours


LOOKS = pieces._MOST_LOOKS


def cutter(
    pairs: set[str] | None = None, added_tokens: tuple[AddedToken, ...] = ()
) -> PieceEncoder:
    native: Any = None
    return PieceEncoder(native, frozenset(pairs or ()), added_tokens)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("a", 0),
        (" a", 0),
        ("a b", 1),
        ("ab cd ef", 5),
        ("a  b", 1),  # before a run of blanks, not in it
        ("abc", 2),
        ("a\nb", 0),  # other blanks are left with what stands around them
        ("ab\n", 1),
    ],
)
def test_the_last_place_to_cut(text: str, place: int) -> None:
    assert cutter().last_cut(text) == place


def test_pairs_that_merge_are_not_cut() -> None:
    assert cutter({"b "}).last_cut("ab cd") == 4  # no blank will do: between two letters
    assert cutter({"b ", "cd"}).last_cut("ab cd") == 1
    assert cutter({"b ", "cd", "ab"}).last_cut("ab cd") == 0
    assert cutter({"b "}).last_cut(f"ab{BLANK}cd") == 4


def test_blanks_are_looked_for_so_far_and_characters_as_far() -> None:
    """A blank that is nearest counts, however far it is; others only near the end."""
    whole = {"xx", "x "}
    assert cutter({"xx"}).last_cut("a " + "x" * (LOOKS + 50)) == 1
    near, far = "y x" + "x" * (LOOKS - 3), "y x" + "x" * (LOOKS - 2)
    assert cutter(whole | {"y "}).last_cut(near) == 0
    assert cutter({"xx", " x"}).last_cut("ab" + "x" * (LOOKS - 1)) == 2
    assert cutter({"xx", " x"}).last_cut("ab" + "x" * LOOKS) == 0
    assert len(far) > LOOKS
    # Beyond the last blank that is looked at none is tried, though it would do.
    text = "ab cd" + "x" * LOOKS + " z"
    assert cutter({"xx", "dx", "x ", " z", "b "}).last_cut(text) == 0
    # The blank before one that is near is looked at, however far away it is.
    assert cutter({"xx", "dx", "x ", " z", "cd", " c", "ab"}).last_cut(text) == 2
    close = "ab cd" + "x" * (LOOKS - 6) + " z"
    assert cutter({"xx", "dx", "x ", "cd"}).last_cut(close) == 2


def test_added_tokens_are_not_cut_nor_what_follows_them() -> None:
    tokens = (AddedToken("<s>", 1),)
    assert [cutter(added_tokens=tokens)._is_cut("ab<s>cd", place) for place in range(1, 7)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("merges", "rows"),
    [
        (["a b", ["b", "a"]], [(0, 1, 2), (1, 0, 3)]),
        (["a b c"], None),
        (["a"], None),
        ([["a", 5]], None),
        ([["a"]], None),
        ([["a", "b", "c"]], None),
        ([["a ", "b"], ["a", " b"], "a b"], [(0, 1, 2)]),  # a space is never merged
        ([["a", "<0x41>"]], None),
        ([["<0x41>", "a"]], None),
        ([["<0x4", "1>"]], None),
        (["a x"], None),
        (["x a"], None),
        (["a a"], None),
        ([], []),
    ],
)
def test_merges_become_rows_of_ids(merges: list[Any], rows: list[Any] | None) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "ba": 3, "<0x41>": 4, "<0x4": 5, "1>": 6, "a<0x41>": 7}
    assert pieces._merge_rows(vocab, merges) == rows


def test_characters_that_merges_bring_together() -> None:
    texts = {0: "a", 1: "bc", 2: " ", 3: "  "}
    assert pieces._pairs_of(texts, [(0, 1, 9), (1, 0, 9), (2, 0, 9), (2, 3, 9)]) == {
        "ab", "ca", " a", "  ",
    }  # fmt: skip
    assert pieces._pairs_of(texts, [(0, 2, 9)]) is None  # a blank behind a letter
    assert pieces._pairs_of(texts, []) == frozenset()


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        ({}, True), ({"type": None}, False), ({"type": "Unigram"}, False), ({"merges": {}}, False),
        ({"vocab": []}, False), ({"byte_fallback": False}, False), ({"dropout": 0.1}, False),
        ({"ignore_merges": True}, False), ({"continuing_subword_prefix": "#"}, False),
        ({"end_of_word_suffix": "</w>"}, False), ({"dropout": 0.0}, True),
    ],
)  # fmt: skip
def test_models_in_which_merges_alone_decide(change: dict[str, Any], plain: bool) -> None:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {BLANK: 256}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, **change}
    assert pieces._is_plain(model) is plain
    for missing in ("<0x00>", "<0xFF>", BLANK):
        few = {text: id for text, id in vocab.items() if text != missing}
        assert pieces._is_plain({**model, "vocab": few}) is False
    model.pop("type")
    assert pieces._is_plain(model) is (plain or "type" in change)
