from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.corpus.inputs import InputFile
from lowtide.errors import DataError, UsageError
from lowtide.files import checksum_bytes
from lowtide.loader import textencoders, texts
from lowtide.loader.ordering import derive_seed
from lowtide.loader.textencoders import make_encoder
from lowtide.loader.texts import FileTexts, Text, iter_encoded, path_list
from lowtide.loader.tokenblocks import Windowing
from lowtide.stores.paths import StorePath
from lowtide.tokenizer import Tokenizer

from .test_streaming import ByteTokenizer


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Five files larger than a block, of documents from one byte to several blocks."""
    sizes = [1, 200, 30, 3000, 64, 5, 700, 90]
    paths = []
    for number in range(5):
        documents = [
            f"{number}.{index} ".encode() + b"word " * (size // 5)
            for index, size in enumerate(sizes)
        ]
        path = tmp_path / f"file{number}.txt"
        path.write_bytes(b"<|endoftext|>".join(documents))
        paths.append(path)
    return paths


@given(block_bytes=st.integers(100, 3000), seed=st.none() | st.integers(0, 99), data=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)
def test_texts_can_be_entered_at_any_place(
    files: list[Path], block_bytes: int, seed: int | None, data: st.DataObject
) -> None:
    source = FileTexts(files, block_bytes=block_bytes)
    texts = list(source.iter_texts(seed=seed))
    index = data.draw(st.integers(0, len(texts) - 1))
    again = list(source.iter_texts(seed=seed, place=texts[index].place))
    assert again == texts[index:]
    assert sum(text.ends_document for text in texts) == 40
    if seed is None:
        joined = b"".join(text.data + b"|" * text.ends_document for text in texts)
        whole = b"".join(path.read_bytes().replace(b"<|endoftext|>", b"|") + b"|" for path in files)
        assert joined == whole


def test_files_come_in_another_order_with_each_seed(files: list[Path]) -> None:
    source = FileTexts(files, block_bytes=1000)
    orders = set()
    for seed in range(8):
        texts = list(source.iter_texts(seed=seed))
        orders.add(tuple(dict.fromkeys(text.data[:1] for text in texts if b"." in text.data[:3])))
        assert sum(len(text.data) for text in texts) == sum(
            len(text.data) for text in source.iter_texts(seed=None)
        )
    assert len(orders) >= 5
    assert all(sorted(order) == [b"0", b"1", b"2", b"3", b"4"] for order in orders)


def test_documents_end_once_even_in_parts(files: list[Path]) -> None:
    source = FileTexts(files[:1], block_bytes=200)
    found = list(iter_encoded(source, make_encoder(ByteTokenizer()), seed=None, group_bytes=50))
    assert len(found) > 8
    assert sum(int(ids[-1] == 256) for _, ids in found) == 8
    first = list(iter_encoded(source, make_encoder(ByteTokenizer()), seed=None, max_documents=4))
    assert sum(int(ids[-1] == 256) for _, ids in first) == 4 and len(first) > 4


def test_one_row_and_its_last_target_are_one_window():
    windowing = Windowing(seq_len=8, stride=4, buffer_windows=1)
    counts = [windowing.count_windows(tokens) for tokens in (8, 9, 10, 13, 14)]
    assert counts == [0, 1, 2, 2, 3]


def test_text_that_names_a_special_token_is_text() -> None:
    """A corpus is text of strangers: what ends a document is said by its file, not by its words."""
    tokenizer = Tokenizer.load("gpt2")
    text = b"one<|endoftext|>two"
    wanted = tokenizer.encode(text, special="text").tolist()
    encoder = make_encoder(tokenizer)
    assert [ids.tolist() for ids in encoder.encode([text])] == [wanted]
    assert encoder.iter_parts is not None
    assert [id for part in encoder.iter_parts(text) for id in part.tolist()] == wanted
    assert encoder.end_of_text_id not in wanted


def test_a_group_of_tiny_texts_is_small(tmp_path: Path) -> None:
    """A text takes its objects and those of its ids, however short it is."""
    path = tmp_path / "tiny.jsonl"
    path.write_text('{"text": "a"}\n' * 500)
    asked: list[int] = []
    real = make_encoder(ByteTokenizer())
    encoder = dataclasses.replace(
        real, encode=lambda texts: asked.append(len(texts)) or real.encode(texts)
    )
    found = list(iter_encoded(FileTexts([path]), encoder, seed=None, group_bytes=51_200))
    assert len(found) == 500
    assert max(asked) == 100


def test_an_object_of_a_store_is_known_by_its_name_size_and_tag() -> None:
    known = InputFile(0, StorePath("s3://bucket/a.txt"), "text", None, 9, 7)
    others = [
        dataclasses.replace(known, size_bytes=8),
        dataclasses.replace(known, modified_ns=8),
        dataclasses.replace(known, path=StorePath("s3://bucket/b.txt")),
    ]
    found = [texts._file_fingerprint(source) for source in (known, *others)]
    assert found[0] == "a.txt 9 7"
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    ("info", "size"),
    [
        ({"train": SimpleNamespace(num_bytes=77)}, 77),
        ({"train": SimpleNamespace(num_bytes=0)}, None),
        ({"test": SimpleNamespace(num_bytes=77)}, None),
        (None, None),
    ],
)
def test_bytes_of_a_split_are_those_that_the_dataset_says(
    monkeypatch: pytest.MonkeyPatch, info: object, size: int | None
) -> None:
    rows = SimpleNamespace(info=SimpleNamespace(splits=info))
    monkeypatch.setattr(texts, "open_hub_rows", lambda *given, **more: rows)
    source = texts.HubTexts("some/texts", split="train", text_field="text")
    assert source.text_bytes == size


def texts_from(*rows: tuple[bytes, bool]) -> Any:
    """A source of texts, each the end of its document or not."""
    made = [Text(data, (number,), ends_document=ends) for number, (data, ends) in enumerate(rows)]
    return SimpleNamespace(iter_texts=lambda *, seed, place: iter(made))


def letters(
    part_bytes: int = 1 << 20, end: int | None = 256
) -> tuple[textencoders.TextEncoder, list[Any]]:
    """Each byte an id; what is encoded together, and in parts of three."""
    asked: list[Any] = []

    def encode(parts: Any) -> list[Any]:
        asked.append(list(parts))
        return [np.frombuffer(part, np.uint8).astype(np.int32) for part in parts]

    def iter_parts(text: bytes) -> Any:
        asked.append(text)
        for at in range(0, len(text), 3):
            yield np.frombuffer(text[at : at + 3], np.uint8).astype(np.int32)

    return textencoders.TextEncoder(encode, end, "letters", iter_parts, part_bytes), asked


def shown(found: Any) -> list[tuple[bytes, bool, list[int]]]:
    return [(text.data, text.ends_document, ids.tolist()) for text, ids in found]


def test_texts_are_encoded_in_groups() -> None:
    """A group is full with its letters and 512 bytes a text; the last may be smaller."""
    encoder, asked = letters()
    source = texts_from((b"ab", True), (b"c", False), (b"d", True), (b"", True), (b"e", False))
    found = shown(iter_encoded(source, encoder, seed=None, group_bytes=1026))
    assert found == [
        (b"ab", True, [97, 98, 256]), (b"c", False, [99]), (b"d", True, [100, 256]),
        (b"", True, [256]), (b"e", False, [101]),
    ]  # fmt: skip
    assert asked == [[b"ab", b"c"], [b"d", b"", b"e"]]
    for size, first in ((1027, 2), (1028, 3), (1539, 3), (1540, 3), (1541, 4)):
        asked.clear()
        list(iter_encoded(source, encoder, seed=None, group_bytes=size))
        assert len(asked[0]) == first
    encoder, _ = letters(end=None)
    assert shown(iter_encoded(texts_from((b"a", True)), encoder, seed=None)) == [(b"a", True, [97])]
    assert list(iter_encoded(texts_from(), encoder, seed=None)) == []


def test_a_long_text_comes_in_parts_and_ends_with_the_last() -> None:
    encoder, asked = letters(part_bytes=4)
    source = texts_from((b"ab", True), (b"cdefg", True), (b"hijk", False), (b"lmnopq", False))
    found = shown(iter_encoded(source, encoder, seed=None))
    assert found == [
        (b"ab", True, [97, 98, 256]),
        (b"", False, [99, 100, 101]), (b"cdefg", True, [102, 103, 256]),
        (b"hijk", False, [104, 105, 106, 107]),
        (b"", False, [108, 109, 110]), (b"lmnopq", False, [111, 112, 113]),
    ]  # fmt: skip
    assert asked == [[b"ab"], b"cdefg", [b"hijk"], b"lmnopq"]
    whole = dataclasses.replace(encoder, iter_parts=None)
    assert shown(iter_encoded(source, whole, seed=None))[1] == (
        b"cdefg", True, [99, 100, 101, 102, 103, 256],
    )  # fmt: skip


@pytest.mark.parametrize(("count", "number"), [(0, 0), (1, 1), (2, 3), (3, 4), (9, 5)])
def test_so_many_documents_and_no_more(count: int, number: int) -> None:
    encoder, _ = letters()
    rows = ((b"a", True), (b"b", False), (b"c", True), (b"d", True), (b"e", False))
    found = list(iter_encoded(texts_from(*rows), encoder, seed=None, max_documents=count))
    assert len(found) == number


class Cuts:
    """A tokenizer of ours that cuts before blanks, and notes what it encodes."""

    def __init__(self, package: Any = None) -> None:
        self.package = package
        self.given: list[Any] = []

    def last_cut(self, text: bytes) -> int:
        return max(text.rfind(b" "), 0)

    def encode_batch(self, parts: list[bytes], **more: Any) -> list[bytes]:
        assert more == {"special": "text", "num_workers": textencoders.ENCODING_THREADS}
        self.given += parts
        return parts

    def iter_encoded(self, parts: list[bytes], **more: Any) -> Any:
        assert more == {"special": "text"}
        return iter(parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"ab cd ef", [b"ab", b" cd", b" ef"]),
        (b"abcdefgh ij", [b"abcdefgh ij"]),
        (b"abcdefg hijklmnop", [b"abcdefg", b" hijklmnop"]),
        (b"abcd", [b"abcd"]),
        (b"ab c", [b"ab c"]),
        (b"ab cd", [b"ab", b" cd"]),
        (b"", []),
    ],
)
def test_a_text_is_cut_into_parts_that_double_where_there_is_no_place(
    text: bytes, parts: list[bytes]
) -> None:
    cuts: Any = Cuts()
    assert list(textencoders._iter_parts(cuts, 4, text)) == parts == cuts.given
    whole: Any = Cuts("package")
    assert list(textencoders._iter_parts(whole, 4, text)) == [text] and whole.given == []


def test_tokenizers_of_every_kind_become_encoders() -> None:
    ours = Tokenizer.load("gpt2")
    encoder = make_encoder(ours, part_bytes=77)
    assert make_encoder(encoder) is encoder
    assert (encoder.end_of_text_id, encoder.fingerprint) == (50256, ours.fingerprint)
    assert encoder.part_bytes == 77 and encoder.iter_parts is not None
    without = make_encoder(ours, end_of_text="")
    assert without.end_of_text_id is None and without.fingerprint != ours.fingerprint

    class Like:
        fingerprint = "like"
        special_tokens: ClassVar[dict[str, int]] = {"</s>": 5, "<|x|>": 7}

        def encode_batch(self, parts: Any) -> list[Any]:
            return [[1] for _ in parts]

    like = make_encoder(Like())
    assert (like.end_of_text_id, like.fingerprint, like.iter_parts) == (5, "like", None)
    assert like.encode([b"a", b"b"]) == [[1], [1]]
    other = make_encoder(Like(), end_of_text="<|x|>")
    assert (other.end_of_text_id, other.fingerprint) == (7, "like end 7")

    class Plain:
        vocab_size = 9

        def encode(self, text: str) -> Any:
            return SimpleNamespace(ids=[ord(letter) for letter in text])

    plain = make_encoder(Plain())
    assert (plain.end_of_text_id, plain.fingerprint) == (None, "Plain 9")
    assert [ids.tolist() for ids in plain.encode([b"ab", b""])] == [[97, 98], []]


@pytest.mark.parametrize("ids", [[-1], [0.5], ["a"]])
def test_what_a_tokenizer_gives_must_be_ids(ids: list[Any]) -> None:
    class Wrong:
        def encode(self, text: str) -> list[Any]:
            return ids

    with pytest.raises(DataError, match=r"Wrong.encode gave .*, expected ids"):
        make_encoder(Wrong()).encode([b"a"])


def test_a_tokenizer_of_the_package_gives_its_ids_alone() -> None:
    asked: list[dict[str, Any]] = []

    class Theirs:
        def token_to_id(self, text: str) -> int | None:
            return {"<|endoftext|>": 3}.get(text)

        def to_str(self) -> str:
            return "whole"

        def encode_batch(self, strings: list[str], **more: Any) -> list[Any]:
            asked.append(more)
            return [SimpleNamespace(ids=[len(text)]) for text in strings]

    encoder = make_encoder(Theirs())
    assert encoder.end_of_text_id == 3 and encoder.fingerprint == checksum_bytes(b"whole")
    found = encoder.encode([b"ab", b"\xff"])
    assert [ids.tolist() for ids in found] == [[2], [1]] and found[0].dtype == np.int32
    assert asked == [{"add_special_tokens": False}]


class Rows:
    """A dataset as their library gives it; notes how it is asked for."""

    def __init__(self, num_shards: int) -> None:
        self.num_shards = num_shards
        self.asked: list[Any] = []

    def shuffle(self, *, seed: int, buffer_size: int) -> Rows:
        self.asked.append(("shuffle", seed, buffer_size))
        return self

    def skip(self, count: int) -> Any:
        self.asked.append(("skip", count))
        return [{"text": f"row {number}"} for number in range(count, 4)]


@pytest.mark.parametrize(
    ("shards", "seed", "place", "asked"),
    [
        (2, 5, None, [("shuffle", 5, 1), ("skip", 0)]),
        (2, (1 << 32) + 5, (2,), [("shuffle", 5, 1), ("skip", 2)]),
        (1, 5, (1,), [("skip", 1)]),
        (2, None, (3,), [("skip", 3)]),
    ],
)
def test_rows_of_a_hub_are_entered_at_any_place(
    monkeypatch: pytest.MonkeyPatch, shards: int, seed: int | None, place: Any, asked: list[Any]
) -> None:
    rows = Rows(shards)
    opened: list[Any] = []
    monkeypatch.setattr(
        texts, "open_hub_rows", lambda *given, **more: opened.append((given, more)) or rows
    )
    source = texts.HubTexts("hf://some/texts:part", config_name="name", streaming=False)
    first = place[0] if place else 0
    found = [(text.data, text.place) for text in source.iter_texts(seed=seed, place=place)]
    assert found == [(f"row {number}".encode(), (number,)) for number in range(first, 4)]
    assert rows.asked == asked
    about = {"split": "part", "config_name": "name", "streaming": False}
    assert opened == [(("some/texts",), about)]
    assert source.fingerprint == checksum_bytes(b"some/texts\nname\npart\ntext")


def test_the_seed_of_an_epoch_is_its_own() -> None:
    assert texts.epoch_seed(3, 7) == derive_seed(3, "epoch 7")
    assert derive_seed(3, "a") == int(checksum_bytes(b"3\na")[:16], 16) < 1 << 64


def test_the_first_id_is_0() -> None:
    class Zeros:
        def encode(self, text: str) -> list[int]:
            return [0, 5]

    assert make_encoder(Zeros()).encode([b"a"])[0].tolist() == [0, 5]


def test_paths_are_a_list() -> None:
    assert path_list(None) == []
    assert path_list("a") == ["a"] and path_list(Path("a")) == [Path("a")]
    assert path_list(("a", Path("b"))) == ["a", Path("b")]


def test_a_token_between_documents_that_no_tokenizer_has_is_refused() -> None:
    """It was left out: documents followed each other without a border."""

    class Theirs:
        def token_to_id(self, text: str) -> int | None:
            return {"</s>": 3}.get(text)

        def to_str(self) -> str:
            return "whole"

        def encode_batch(self, strings: list[str], **more: Any) -> list[Any]:
            raise AssertionError

    class Plain:
        eos_token_id = 1

        def encode(self, text: str) -> list[int]:
            raise AssertionError

        def get_vocab(self) -> dict[str, int]:
            return {"</s>": 4}

    assert make_encoder(Plain()).end_of_text_id == 1
    for tokenizer, known in ((Theirs(), 3), (Plain(), 4)):
        assert make_encoder(tokenizer, end_of_text="</s>").end_of_text_id == known
    message = r"end_of_text is '<\|nope\|>', and the tokenizer has no such token"
    for tokenizer in (Tokenizer.load("gpt2"), Theirs(), Plain()):
        with pytest.raises(UsageError, match=message):
            make_encoder(tokenizer, end_of_text="<|nope|>")
