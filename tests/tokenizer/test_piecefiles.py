"""tokenizer.model of SentencePiece: read as the tokenizer.json that transformers makes of it."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer, piecefiles
from lowtide.tokenizer.piecefiles import tokenizer_json_of_pieces

from ..equality.families import llama2

TEXT = "The  tide is low 日本語\t naïve \U0001f30a\n"


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def pieces_of(data: dict[str, Any]) -> list[tuple[str, float, int]]:
    """Pieces of a tokenizer.json: the place of the merge that makes a piece is its score."""
    scores = {"".join(pair): -float(rank) for rank, pair in enumerate(data["model"]["merges"])}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    return [
        (
            text,
            scores.get(text, -1e6),
            kinds.get(text, 6 if text.startswith("<0x") and len(text) == 6 else 1),
        )
        for text in sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    ]


def message(
    pieces: list[tuple[str, float, int]],
    *,
    trained: bytes | None = None,
    rules: bytes | None = None,
) -> bytes:
    rows = [
        field(1, field(1, text.encode()) + field(2, score) + (field(3, kind) if kind != 1 else b""))
        for text, score, kind in pieces
    ]
    plain = field(1, b"identity") + field(4, 0)
    return (
        b"".join(rows)
        + field(2, field(3, 2) + field(35, 1) if trained is None else trained)
        + field(3, plain if rules is None else rules)
    )


@pytest.fixture(scope="module")
def theirs() -> tokenizers.Tokenizer:
    return llama2()


@pytest.fixture(scope="module")
def pieces(theirs: tokenizers.Tokenizer) -> list[tuple[str, float, int]]:
    return pieces_of(json.loads(theirs.to_str()))


@pytest.fixture(scope="module")
def ours(
    pieces: list[tuple[str, float, int]], tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.model").write_bytes(message(pieces))
    return Tokenizer.load(folder)


@given(st.text(max_size=40) | st.text("The tide ▁ 日naïv\n", max_size=60))
def test_ids_are_those_of_the_tokenizer_it_came_from(
    ours: Tokenizer, theirs: tokenizers.Tokenizer, text: str
) -> None:
    text = text.encode("utf-8", "replace").decode()
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special="text").tolist() == wanted


def test_a_file_of_any_version_is_known_by_its_name(
    pieces: list[tuple[str, float, int]], ours: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "mistral_instruct.model.v3"
    path.write_bytes(message(pieces))
    found = Tokenizer.load(path)
    assert found.encode(TEXT).tolist() == ours.encode(TEXT).tolist()
    assert found.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    found.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == found.fingerprint


def test_tokens_of_the_user_are_found_in_text(
    pieces: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(message([*pieces, ("[INST]", 0.0, 4)]))
    tokenizer = Tokenizer.load(path)
    assert len(pieces) in tokenizer.encode("a[INST]b", special="text").tolist()


def test_without_a_blank_before_the_text(
    pieces: list[tuple[str, float, int]], ours: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(message(pieces, rules=field(3, 0) + field(4, 0)))
    plain = Tokenizer.load(path)
    assert plain.encode(" low").tolist() == ours.encode("low").tolist()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"trained": field(3, 1) + field(35, 1)}, "no byte-fallback BPE"),
        ({"trained": field(3, 2)}, "no byte-fallback BPE"),
        ({"trained": field(3, 2) + field(35, 1) + field(24, 1)}, "blanks behind words"),
        ({"rules": field(2, b"map") + field(4, 0)}, "rules that change characters"),
        ({"rules": field(2, b"m") + field(4, 0)}, "rules that change characters"),
        ({"rules": b""}, "blanks that are removed"),
    ],
)
def test_other_kinds_are_refused_with_the_way_to_convert_them(
    pieces: list[tuple[str, float, int]], options: dict[str, bytes], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(message(pieces, **options))
    with pytest.raises(DataError, match=reason) as caught:
        Tokenizer.load(path)
    assert "save_pretrained" in (caught.value.next_step or "")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.model"
    path.write_bytes(data)
    with pytest.raises(DataError):
        Tokenizer.load(path)


@pytest.mark.parametrize("cut", [1, 5, 100, 3000])
def test_files_that_end_too_early_are_refused(
    pieces: list[tuple[str, float, int]], cut: int, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(message(pieces)[:-cut])
    with pytest.raises(DataError):
        Tokenizer.load(path)


def test_a_piece_that_comes_twice_is_refused(
    pieces: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(message([*pieces, pieces[-1]]))
    with pytest.raises(DataError, match="comes twice"):
        Tokenizer.load(path)


SMALL = [
    ("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("a", -1.0, 1), ("b", -2.0, 1), ("c", -9.0, 5),
    ("ab", -3.0, 1), ("ba", -3.0, 1), ("aba", -4.0, 1), ("ac", -1.0, 1), ("[X]", 0.0, 4),
    ("<0x41>", 0.0, 6),
]  # fmt: skip


def contents(folder: Path, rows: list[tuple[str, float, int]], **more: bytes) -> dict[str, Any]:
    path = folder / "tokenizer.model"
    path.write_bytes(message(rows, **more))
    return json.loads(tokenizer_json_of_pieces(path))


def test_the_whole_of_a_tokenizer_json(tmp_path: Path) -> None:
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    blank = "\u2581"
    assert contents(tmp_path, SMALL) == {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<unk>", **added, "special": True},
            {"id": 1, "content": "<s>", **added, "special": True},
            {"id": 9, "content": "[X]", **added, "special": False},
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": blank},
                {"type": "Replace", "pattern": {"String": " "}, "content": blank},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                first,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<s>", "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": blank}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: id for id, (text, _, _) in enumerate(SMALL)},
            # The highest score first; of one piece the longest left part. c is not used.
            "merges": [["a", "b"], ["b", "a"], ["ab", "a"], ["a", "ba"]],
        },
    }


def test_parts_that_are_not_there(tmp_path: Path) -> None:
    rows = [row for row in SMALL if row[0] not in ("<unk>", "<s>")]
    found = contents(tmp_path, rows, rules=field(3, 0) + field(4, 0))
    assert found["model"]["unk_token"] is None and found["post_processor"] is None
    assert len(found["normalizer"]["normalizers"]) == 1
    assert [step["type"] for step in found["decoder"]["decoders"]] == [
        "Replace", "ByteFallback", "Fuse",
    ]  # fmt: skip


def test_what_a_file_says_nothing_of_is_as_its_library_has_it() -> None:
    """A piece without score and kind; a file without its rules."""
    row = field(1, field(1, b"a"))
    found = piecefiles._read(row)
    assert (found.texts, found.scores, found.kinds) == (["a"], [0.0], [1])
    assert (found.model_type, found.has_byte_fallback, found.blank_is_suffix) == (1, False, False)
    assert (found.charsmap_bytes, found.adds_blank, found.removes_blanks) == (0, True, True)
    assert piecefiles._read(row + field(2, b"")).model_type == 1
    empty = piecefiles._read(row + field(2, b"") + field(3, b""))
    assert (empty.has_byte_fallback, empty.adds_blank, empty.removes_blanks) == (False, True, True)
    found = piecefiles._read(row + field(3, field(2, b"xyz") + field(3, 0) + field(4, 0)))
    assert (found.charsmap_bytes, found.adds_blank, found.removes_blanks) == (3, False, False)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no pieces in it"),
        (field(1, 5), "a number where a part of the message should be"),
        (field(1, field(1, b"a") + field(3, b"x")), "a part of the message where a number"),
        (b"\x0b", "a field of kind 3"),
        (varint(1 << 3 | 2) + varint(9) + b"abc", "it ends too early"),
        (b"\x80" * 10 + b"\x01", "a number of more than 64 bits"),
        (field(1, field(1, b"a")) * 2, "a piece comes twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "a.model"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"not a file of SentencePiece: {why}") as caught:
        tokenizer_json_of_pieces(path)
    assert caught.value.path == path


def test_fields_of_every_kind() -> None:
    data = field(1, 300) + varint(2 << 3 | 1) + b"12345678" + field(300, b"text") + field(4, 1.5)
    assert list(piecefiles._fields(data)) == [
        (1, 300), (2, b"12345678"), (300, b"text"), (4, struct.pack("<f", 1.5)),
    ]  # fmt: skip
    for cut in (1, 3):
        with pytest.raises(ValueError, match="it ends too early"):
            list(piecefiles._fields(data[:-cut]))
    assert piecefiles._varint(b"\xff" * 9 + b"\x01", 0) == ((1 << 64) - 1, 10)
