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
from lowtide.tokenizer import Tokenizer

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
