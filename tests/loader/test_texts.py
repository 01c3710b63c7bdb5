from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.corpus.inputs import InputFile
from lowtide.loader import texts
from lowtide.loader.texts import FileTexts, iter_encoded, make_encoder
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
