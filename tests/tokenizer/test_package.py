"""Tokenizers that the package runs: in every verb, in bounded memory, and it is said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as HuggingFace
from tokenizers import pre_tokenizers as pre

from lowtide import packages
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.layout import load_dataset_info
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.generation.prompts import Prompt, encode_end
from lowtide.tokenizer import Tokenizer, package
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.needs import NO_MORE, tokenizer_needs
from lowtide.tokenizer.package import PackageEncoder

WORDS = [
    "the",
    "sea",
    "comes",
    "in",
    "and",
    "goes",
    "out",
    "twice",
    "a",
    "day",
    "and",
    "the",
    "moon",
    "is",
    "why",
]
END = "</s>"


def sentencepiece(folder: Path) -> Path:
    """A tokenizer.json as Llama 2 has it, but for a normalizer that native code does not know."""
    tokens = ["<unk>", "<s>", END, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({"▁", *"".join(WORDS)})
    merges: list[tuple[str, str]] = []
    for word in dict.fromkeys(WORDS):
        left = "▁"
        for letter in word:
            if (left, letter) not in merges:
                merges.append((left, letter))
            left += letter
    tokens += letters + [left + right for left, right in merges]
    vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    model = models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    tokenizer = HuggingFace(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", END])
    steps = [normalizers.NFKC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def text_of(num_words: int, first: int = 0) -> str:
    return "".join(
        WORDS[n * n % len(WORDS)] + ("\n" if n % 11 == 10 else " ")
        for n in range(first, first + num_words)
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentencepiece(tmp_path_factory.mktemp("sp"))


@pytest.fixture(scope="module")
def ours(source: Path) -> Tokenizer:
    return Tokenizer.load(source)


@pytest.fixture(scope="module")
def theirs(source: Path) -> HuggingFace:
    return HuggingFace.from_file(str(source))


def ids_of(theirs: HuggingFace, text: str) -> list[int]:
    return theirs.encode(text, add_special_tokens=False).ids


def test_a_text_in_pieces_has_no_more_blanks_than_the_whole(
    ours: Tokenizer, theirs: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encode = package._encode
    monkeypatch.setattr(
        package, "_encode", lambda t, text: (seen.append(len(text)), encode(t, text))[1]
    )
    text = text_of(EncodingLimits.piece_characters)
    assert len(text) > 3 * EncodingLimits.piece_characters
    assert ours.encode(text).tolist() == ids_of(theirs, text)
    assert max(seen) < 2 * EncodingLimits.piece_characters + EncodingLimits.piece_characters // 2


def test_text_without_a_place_to_cut_is_refused_once_it_is_too_long(source: Path) -> None:
    limits = EncodingLimits(most_characters=4 * EncodingLimits.piece_characters)
    tokenizer = Tokenizer(Tokenizer.load(source).data, limits=limits)
    assert len(tokenizer.encode("q" * 3 * EncodingLimits.piece_characters)) > 0
    with pytest.raises(BudgetError, match="no place to cut"):
        tokenizer.encode("q" * 8 * EncodingLimits.piece_characters)


def test_special_tokens_are_text_or_ids_or_forbidden(ours: Tokenizer) -> None:
    text = f"the sea{END}the moon"
    assert ours.end_of_text == END
    assert ours.end_of_text_id == 2
    assert 2 in ours.encode(text, special="allow")
    assert 2 not in ours.encode(text, special="text")
    assert ours.decode(ours.encode(text, special="text")) == text
    with pytest.raises(DataError, match="special token '</s>' in the text at 7"):
        ours.encode(text, special="forbid")
    with pytest.raises(DataError, match="at 7"):
        list(ours.encode_iterable([text[:9], text[9:]], special="forbid"))
    assert len(ours.encode(text.replace(END, ""), special="forbid"))


@pytest.mark.parametrize(
    ("model", "pre_tokenizer", "added", "text", "reason"),
    [
        (models.WordLevel({"a": 0}, "[UNK]"), pre.WhitespaceSplit(), [], "a b", "Missing"),
        (
            models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"),
            pre.WhitespaceSplit(),
            [AddedToken("<x>", rstrip=True), AddedToken("  ", lstrip=True)],
            "<x>     a",  # the package panics
            "bad split",
        ),
    ],
)
def test_what_the_package_cannot_encode_is_an_error(
    tmp_path: Path, model: Any, pre_tokenizer: Any, added: list[AddedToken], text: str, reason: str
) -> None:
    theirs = HuggingFace(model)
    theirs.pre_tokenizer = pre_tokenizer
    theirs.add_tokens(added)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("a").tolist() == [0]
    with pytest.raises(DataError, match=reason) as raised:
        ours.encode(text)
    assert "tokenizer.json" in (raised.value.next_step or "")


def test_what_is_no_text_is_refused(ours: Tokenizer) -> None:
    value: Any = 5
    for encode in (
        ours.encode,
        lambda text: ours.encode_batch(["a", text]),
        lambda text: list(ours.encode_iterable(["a", text])),
    ):
        with pytest.raises(UsageError, match="a text is int, expected str or bytes"):
            encode(value)


def test_half_a_surrogate_pair_is_an_unknown_character(ours: Tokenizer) -> None:
    wanted = ours.encode("a\ufffdb").tolist()
    assert ours.encode("a\ud800b").tolist() == wanted
    assert [ids.tolist() for ids in ours.encode_batch(["a\ud800b"])] == [wanted]
    assert list(ours.encode_iterable(["a\ud800b"])) == wanted


@pytest.mark.parametrize(
    "decoder", ["Fuse", {"type": {}}, {"type": "Sequence", "decoders": [[]]}, {"type": "Sequence",
    "decoders": [{"type": "Replace", "pattern": 5}]}]
)  # fmt: skip
def test_a_damaged_decoder_is_named(source: Path, tmp_path: Path, decoder: Any) -> None:
    contents = {**json.loads(source.read_text()), "decoder": decoder}
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    with pytest.raises(DataError, match="this tokenizer is damaged: its decoder is"):
        Tokenizer.load(tmp_path)


def test_tokens_are_bytes(ours: Tokenizer) -> None:
    ids = ours.encode("the sea\té")
    assert b"".join(ours.token_bytes(int(id)) for id in ids) == " the sea\té".encode()
    assert ours.vocabulary[3 + 0x41] == b"A"
    assert ours.merges == []
    with pytest.raises(UsageError):
        ours.decode([ours.vocab_size])


@pytest.mark.parametrize(
    ("decoder", "token", "wanted"),
    [
        (decoders.WordPiece(), "##ing", b"ing"),
        (decoders.WordPiece(), "low", b" low"),
        (decoders.BPEDecoder("</w>"), "low</w>", b"low "),
        (decoders.ByteLevel(), "Ġlow", b" low"),
        (decoders.Metaspace(), "▁low", b" low"),
        (None, "low", b" low"),
    ],
)
def test_what_a_token_stands_for(tmp_path: Path, decoder: Any, token: str, wanted: bytes) -> None:
    tokenizer = HuggingFace(models.WordLevel({token: 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre.Whitespace()
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).token_bytes(0) == wanted


def test_fingerprints_cover_what_decides_ids_and_no_spelling(source: Path, tmp_path: Path) -> None:
    contents = json.loads(source.read_bytes())

    def fingerprint(**changes: Any) -> str:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({**contents, **changes}, indent=3))
        return Tokenizer.load(path).fingerprint

    known = Tokenizer.load(source).fingerprint
    model = contents["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    assert fingerprint() == known
    assert fingerprint(model={**model, "merges": merges}) == known
    assert fingerprint(decoder=None, padding=None, post_processor=None) == known
    others = [
        fingerprint(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        fingerprint(pre_tokenizer={"type": "Digits", "individual_digits": True}),
        fingerprint(model={**model, "merges": model["merges"][:-1]}),
        fingerprint(model={**model, "fuse_unk": False}),
        fingerprint(added_tokens=contents["added_tokens"][:-1]),
    ]
    assert len({known, *others}) == 6


def test_truncation_padding_and_dropout_do_nothing(source: Path, tmp_path: Path) -> None:
    theirs = HuggingFace.from_file(str(source))
    wanted = ids_of(theirs, "the sea comes in")
    theirs.enable_truncation(2)
    theirs.enable_padding(length=50)
    theirs.model.dropout = 0.5
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("the sea comes in").tolist() == wanted


def test_one_line_says_so(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.setattr(package, "_told", threading.Lock())
    for _ in range(2):
        Tokenizer.load(source)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(
        "note: normalizer Sequence(NFKC, Prepend, Replace): this tokenizer runs"
    )
    assert "times slower" in said[0]


def test_a_missing_package_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "has_package", lambda module: module != "tokenizers")
    wanted = r"a tokenizer with normalizer Sequence.* needs the package tokenizers"
    with pytest.raises(packages.MissingPackageError, match=wanted) as caught:
        Tokenizer.load(source)
    assert caught.value.next_step == 'pip install "lowtide[tokenizers]"'
    assert caught.value.path == str(source)


def test_needs_are_known_before_it_is_loaded(source: Path) -> None:
    assert tokenizer_needs(source).by_package
    assert tokenizer_needs(source).table_bytes > source.stat().st_size
    assert tokenizer_needs(source.parent) == tokenizer_needs(source)
    assert tokenizer_needs("char") == tokenizer_needs("no/such.json") == NO_MORE


def read_ids(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.bin"))}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one sentence and of many, most of them with words of their own."""
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    rows = [{"text": f"number {n}: " + text_of(20 + 400 * (n % 3), 31 * n)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_datasets_are_the_same_with_any_workers_and_budget(
    source: Path, texts: Path, theirs: HuggingFace, tmp_path: Path
) -> None:
    made = [
        prepare_dataset(
            input_files=[texts],
            tokenization=str(source),
            out_dir=tmp_path / f"{processes}",
            processes=processes,
            memory=memory,
            shuffle=False,
            filter=False,
            dedup=False,
            normalize=False,
            val_fraction=0.0,
        )
        for processes, memory in ((1, "400MiB"), (3, "900MiB"))
    ]
    assert read_ids(tmp_path / "1") == read_ids(tmp_path / "3")
    wanted: list[int] = []
    for line in texts.read_text().splitlines():
        wanted += [*ids_of(theirs, json.loads(line)["text"]), 2]
    found = b"".join(read_ids(tmp_path / "1").values())
    assert np.frombuffer(found, "<u2").tolist() == wanted
    assert verify_dataset(dataset_dir=tmp_path / "1").problems == []
    info = made[0].info
    assert info is not None
    assert info.tokenizer_fingerprint == Tokenizer.load(source).fingerprint
    assert (tmp_path / "1" / "tokenizer.json").read_bytes() == source.read_bytes()


def test_texts_are_appended(source: Path, texts: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory": "400MiB", "processes": 2}
    out = tmp_path / "data"
    prepare_dataset(input_files=[texts], tokenization=str(source), out_dir=out, **options)
    before = load_dataset_info(out).num_tokens("train")
    more = tmp_path / "more.txt"
    more.write_text("what the moon does to the sea is seen twice a day\n" * 3 + text_of(300, 7))
    append_to_dataset(dataset_dir=out, input_files=[more], **options)
    after = load_dataset_info(out)
    assert after.num_tokens("train") + after.num_tokens("val") > before
    assert verify_dataset(dataset_dir=out).problems == []


def test_a_budget_too_small_for_its_tables_is_refused(
    source: Path, texts: Path, tmp_path: Path
) -> None:
    large = json.loads(source.read_bytes())
    large["model"]["vocab"] |= {f"filler{n}": 1000 + n for n in range(60_000)}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(large))
    with pytest.raises(BudgetError, match="tokenizer") as caught:
        prepare_dataset(
            input_files=[texts], tokenization=str(path), out_dir=tmp_path / "out", memory="180MiB"
        )
    assert "--memory" in str(caught.value.next_step)


def test_a_file_becomes_ids_document_by_document(
    source: Path, theirs: HuggingFace, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    documents = [text_of(30), text_of(900, 5), "", text_of(60_000, 9)]
    path.write_text("<|endoftext|>".join(documents))
    result = pretokenize_file(file=path, tokenization=str(source), memory="400MiB")
    wanted: list[int] = []
    for document in documents:
        wanted += [*ids_of(theirs, document), 2]
    assert np.load(result.path).tolist() == wanted[:-1]
    again = pretokenize_file(file=path, tokenization=str(source), memory="400MiB")
    assert again.was_there


def test_the_end_of_a_prompt_is_that_of_the_whole(ours: Tokenizer, theirs: HuggingFace) -> None:
    text = text_of(20_000)
    assert encode_end(ours, Prompt(text), 50) == ids_of(theirs, text)[-50:]
    assert encode_end(ours, Prompt("the"), 50) == ids_of(theirs, "the")


@pytest.mark.parametrize(("num_workers", "used"), [(None, 3), (2, 2)])
def test_a_batch_takes_all_cores_or_as_many_as_are_given(
    ours: Tokenizer, monkeypatch: pytest.MonkeyPatch, num_workers: int | None, used: int
) -> None:
    seen: list[int] = []
    encode = PackageEncoder.encode_batch

    def note(self: PackageEncoder, texts: Any, *, special: str, num_workers: int) -> Any:
        seen.append(num_workers)
        return encode(self, texts, special=special, num_workers=num_workers)

    monkeypatch.setattr(PackageEncoder, "encode_batch", note)
    monkeypatch.setattr("lowtide.tokenizer.tokenizer.usable_cores", lambda: 3)
    assert len(ours.encode_batch(["the tide", "low"], num_workers=num_workers)) == 2
    assert seen == [used]


def test_a_forbidden_token_is_named_with_its_place_wherever_it_is(ours: Tokenizer) -> None:
    for before in ("", "a", "some words before it "):
        text = f"{before}{END} after"
        for cut in (0, 1, len(before) + 3, len(before) + len(END)):
            with pytest.raises(DataError, match=f"in the text at {len(before)}\n"):
                list(ours.encode_iterable([text[:cut], text[cut:]], special="forbid"))


@pytest.mark.parametrize(
    ("texts", "least", "found"),
    [
        (["ab", "c", "defg", "h"], 3, ["abc", "defg", "h"]),
        (["ab", b"c\xc3", b"\xa9d"], 3, ["abc", "\u00e9d"]),
        ([b"a\xc3"], 9, ["a\ufffd"]),
        (["abc"], 3, ["abc", ""]),
        ([], 3, [""]),
    ],
)
def test_strings_are_gathered_and_characters_stay_whole(
    texts: list[str | bytes], least: int, found: list[str]
) -> None:
    assert list(package._iter_strings(texts, least)) == found


def test_places_to_cut_are_tried_line_by_line_then_blank_by_blank() -> None:
    text = "a b\nc d\ne f" + "x" * package._CONTEXT
    assert list(package._iter_places(text, 0, 100)) == [4, 3, 8, 7, 1, 5, 9]
    assert list(package._iter_places(text, 2, 100)) == [4, 3, 8, 7, 5, 9]
    assert list(package._iter_places(text, 0, 7)) == [4, 3, 1, 5]
    assert list(package._iter_places(text[:-7], 0, 100)) == [4, 3, 1]  # context must follow
    many = " " * 300 + "x" * package._CONTEXT
    assert list(package._iter_places(many, 0, 300)) == list(range(64))


class Letters:
    """A package's tokenizer of which `_` hangs on to what stands before it."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        assert not add_special_tokens
        (text,) = texts
        self.given.append(text)
        ids: list[int] = []
        for letter in text:
            if letter == "_" and ids:
                ids[-1] += 1000
            else:
                ids.append(ord(letter))
        return [SimpleNamespace(ids=ids)]


def test_a_cut_is_where_what_follows_changes_no_id() -> None:
    letters = Letters()
    rest = "x" * package._CONTEXT
    text = f"ab\n_cd\nef{rest}"
    assert package._find_cut(letters, text, 0, 50) == 2  # not behind the line end: _ follows
    assert package._find_cut(letters, text, 3, 50) == 7
    assert package._find_cut(letters, f"a _b{rest}", 0, 50) == 1
    assert package._find_cut(letters, f"a_b{rest}", 0, 50) is None
    long = "y" * 3000 + "\n" + "z" * 3000
    letters.given.clear()
    assert package._find_cut(letters, long, 2000, 2000) == 3001
    near, far = "y" * 1023 + "\n", "y" * 254 + "\n"
    assert letters.given == [near, near + "z" * 1024, far, far + "z" * 255]
    assert package._encode_behind(letters, "ab", "cd").tolist() == [99, 100]
    assert package._encode_behind(letters, "", "cd").tolist() == [99, 100]


class Runs:
    """A package's tokenizer with a token for so many line ends, found from the left."""

    def __init__(self, length: int) -> None:
        self.run = "\n" * length

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        assert not add_special_tokens
        return [SimpleNamespace(ids=[ord(letter) for letter in texts[0].replace(self.run, "R")])]


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 17])
def test_no_cut_is_inside_a_run(length: int) -> None:
    tokens = Runs(length)
    text = "ab" + "\n" * 5001 + "cd\nef" + "\n" * 2999 + "x\n" * 900
    encoder = stub_encoder(EncodingLimits(piece_characters=600))
    found = list(encoder._iter_pieces(iter([text]), tokens))
    wanted = tokens.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert len(found) > 2
    assert [id for ids in found for id in ids.tolist()] == wanted


def stub_encoder(limits: EncodingLimits, specials: tuple[str, ...] = ()) -> Any:
    encoder = object.__new__(package.PackageEncoder)
    encoder._limits, encoder._specials, encoder._pieces = limits, specials, None
    return encoder


@pytest.mark.parametrize("size", [1, 700, 5000])
def test_a_text_in_pieces_has_the_ids_of_the_whole(size: int) -> None:
    letters = Letters()
    text = ("words of a line_ \n_and another\n" * 400)[:9999]
    encoder = stub_encoder(EncodingLimits(piece_characters=600))
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    found = list(encoder._iter_pieces(iter(parts), letters))
    wanted = letters.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert [id for ids in found for id in ids.tolist()] == wanted
    assert len(found) > 5
    sizes = [len(ids) for ids in found[:-1]]
    assert min(sizes) >= 500 and max(sizes) <= 900
    assert list(encoder._iter_pieces(iter([]), letters)) == []


def test_a_place_to_cut_is_looked_for_further_on() -> None:
    letters = Letters()
    encoder = stub_encoder(EncodingLimits(piece_characters=2000, most_characters=8000))
    text = "x" * 6500 + "\n" + "y" * 6000
    found = [ids.tolist() for ids in encoder._iter_pieces(iter([text]), letters)]
    assert [len(ids) for ids in found] == [6501, 6000]
    with pytest.raises(BudgetError) as caught:
        list(encoder._iter_pieces(iter(["x" * 20_000]), letters))
    assert caught.value.message.startswith("there is no place to cut in 9,000 characters of text")


def test_room_is_what_the_limit_says() -> None:
    limits = EncodingLimits(most_characters=100)
    assert package._require_room(100, limits) == 100
    with pytest.raises(BudgetError, match="no place to cut in 101 characters"):
        package._require_room(101, limits)


@pytest.mark.parametrize(
    ("parts", "place"),
    [(["a<s>"], 1), (["a", "<", "s", ">"], 1), (["abcdef", "gh<s", ">"], 8), (["<s>"], 0),
     (["x" * 50, "y<s>"], 51), (["a", "</s>"], 1)],
)  # fmt: skip
def test_a_forbidden_token_is_named_by_its_place_in_the_stream(
    parts: list[str], place: int
) -> None:
    encoder = stub_encoder(EncodingLimits(), ("<s>", "</s>"))
    with pytest.raises(DataError, match=f"in the text at {place}$|in the text at {place}\\n"):
        list(encoder._iter_refusing(parts))
    assert list(encoder._iter_refusing(["a<", "t>"])) == ["a<", "t>"]


class Pieces:
    """Pieces that are cut before blanks, and note what they are given."""

    def __init__(self) -> None:
        self.given: list[tuple[str, bool, bool]] = []

    def last_cut(self, text: str) -> int:
        return max(text.rfind(" "), 0)

    def encode(self, text: str, *, allow: bool, is_first: bool) -> Any:
        self.given.append((text, allow, is_first))
        return np.array([len(text)], np.uint32)


def test_native_pieces_are_cut_at_their_last_place() -> None:
    limits = EncodingLimits(native_characters=6, most_characters=24)
    pieces: Any = Pieces()
    texts = ["ab cd ef", " gh", "ijklmnopq", " " + "r" * 13]
    found = list(package._iter_natively(pieces, texts, limits, allow=True))
    assert "".join(text for text, *_ in pieces.given) == "".join(texts)
    assert [text for text, *_ in pieces.given] == ["ab cd", " ef", " ghijklmnopq", texts[-1]]
    assert [first for *_, first in pieces.given] == [True, False, False, False]
    assert all(allow for _, allow, _ in pieces.given) and len(found) == 4
    with pytest.raises(BudgetError, match="no place to cut in 48 characters"):
        list(package._iter_natively(pieces, ["x" * 60], limits, allow=False))
    assert list(package._iter_natively(pieces, [""], limits, allow=False)) == []


@pytest.mark.parametrize(
    ("texts", "workers", "pools"), [(1, 4, []), (4, 1, []), (2, 2, [2]), (5, 3, [3])]
)
def test_threads_are_for_several_texts(
    monkeypatch: pytest.MonkeyPatch, texts: int, workers: int, pools: list[int]
) -> None:
    made: list[int] = []
    plain = package.ThreadPoolExecutor
    monkeypatch.setattr(
        package, "ThreadPoolExecutor", lambda count: (made.append(count), plain(count))[1]
    )
    encoder = stub_encoder(EncodingLimits())
    encoder.encode = lambda text, special: (text, special)
    given = [f"{n}" if n % 2 else f"{n}".encode() for n in range(texts)]
    found = encoder.encode_batch(given, special="allow", num_workers=workers)
    assert found == [(f"{n}", "allow") for n in range(texts)] and made == pools


@pytest.mark.parametrize(("text", "parts"), [("ab cd", ["ab cd"]), ("ab cde", ["ab", " cde"])])
def test_a_piece_is_cut_once_it_is_as_long_as_wanted(text: str, parts: list[str]) -> None:
    pieces: Any = Pieces()
    limits = EncodingLimits(native_characters=6)
    list(package._iter_natively(pieces, [text], limits, allow=True))
    assert [given for given, *_ in pieces.given] == parts
