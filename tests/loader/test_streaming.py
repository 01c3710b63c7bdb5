from __future__ import annotations

import copy
import gc
import gzip
import itertools
import json
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.loader import streaming as module
from lowtide.loader import texts
from lowtide.loader.endlessbatches import EndlessBatches
from lowtide.loader.footprint import estimate_memory_usage, planned_bytes
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.textencoders import make_encoder
from lowtide.loader.texts import FileTexts
from lowtide.loader.tokenblocks import Windowing, iter_token_blocks, windows_before
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer


class ByteTokenizer:
    """A tokenizer as the contract has it: each byte an id, 256 the end of a text."""

    fingerprint = "bytes"
    special_tokens = {"<|endoftext|>": 256}  # noqa: RUF012

    def encode_batch(self, texts: list[bytes]) -> list[Any]:
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint32) for text in texts]


@pytest.fixture
def text_files(tmp_path: Path) -> list[Path]:
    """Three files of documents whose bytes tell their place: 40 documents of 10 to 49 bytes."""
    rng = np.random.default_rng(3)
    paths = []
    for number in range(3):
        documents = [
            bytes(rng.integers(97, 123, size).astype(np.uint8))
            for size in rng.integers(10, 50, 13 + number)
        ]
        path = tmp_path / f"part{number}.txt"
        path.write_bytes(b"<|endoftext|>".join(documents))
        paths.append(path)
    return paths


def make(files: Any, **options: Any) -> StreamingDataLoader:
    values = {"seq_len": 16, "batch_size": 4, "shuffle_buffer_size": 10, "tokenizer": None}
    values |= options
    values["tokenizer"] = values["tokenizer"] or ByteTokenizer()
    return StreamingDataLoader(files=files, **values)


def stream_of(paths: list[Path]) -> list[int]:
    """All tokens of the files in order, with an end after each document."""
    tokens: list[int] = []
    for path in paths:
        for document in path.read_bytes().split(b"<|endoftext|>"):
            tokens += [*document, 256]
    return tokens


def windows_of(batches: Any) -> list[tuple[int, ...]]:
    found = []
    for batch in batches:
        assert np.array_equal(batch["input_ids"][:, 1:], batch["targets"][:, :-1])
        found += [
            (*row, last)
            for row, last in zip(
                batch["input_ids"].tolist(), batch["targets"][:, -1].tolist(), strict=True
            )
        ]
    return found


def all_windows(tokens: list[int], length: int, stride: int) -> list[tuple[int, ...]]:
    last = len(tokens) - length - 1
    starts = [min(k * stride, last) for k in range(-(-last // stride) + 1)]
    return [tuple(tokens[start : start + length + 1]) for start in starts]


def test_without_shuffling_it_is_the_text_with_ends_between(text_files: list[Path]) -> None:
    loader = make(text_files, shuffle_buffer_size=1)
    expected = all_windows(stream_of(text_files), 16, 16)
    assert windows_of(loader) == expected
    assert windows_of(loader) == expected
    assert loader.epoch == 2 and loader.end_of_text_id == 256


def test_a_dataset_id_may_name_a_file_here(text_files: list[Path]) -> None:
    options = {"tokenizer": ByteTokenizer(), "seq_len": 16, "batch_size": 4}
    named = windows_of(StreamingDataLoader(str(text_files[0]), **options))
    assert named == windows_of(make([text_files[0]], **options, shuffle_buffer_size=10_000))
    assert len(named) > 10


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("stride", [None, 5])
def test_an_epoch_has_every_window_once_in_another_order(
    text_files: list[Path], streaming: bool, stride: int | None
) -> None:
    one_file = text_files[:1]  # the order of files changes which windows cross their borders
    loader = make(one_file, streaming=streaming, stride=stride)
    expected = all_windows(stream_of(one_file), 16, stride or 16)
    first, second = windows_of(loader), windows_of(loader)
    assert sorted(first) == sorted(second) == sorted(expected)
    assert first != second and first != expected
    assert windows_of(make(one_file, streaming=streaming, stride=stride)) == first
    assert windows_of(make(one_file, streaming=streaming, stride=stride, seed=1)) != first


def test_what_fits_in_the_buffer_is_shuffled_whole(text_files: list[Path]) -> None:
    loader = make(text_files[:1], shuffle_buffer_size=1000)
    expected = all_windows(stream_of(text_files[:1]), 16, 16)
    places = [expected.index(window) for window in windows_of(loader)]
    assert sorted(places) == list(range(len(expected)))
    assert max(abs(place - index) for index, place in enumerate(places)) > len(places) // 2


@given(
    stop=st.integers(0, 60),
    buffer=st.integers(1, 30),
    stride=st.integers(1, 20),
    world_size=st.sampled_from([1, 2, 3]),
    streaming=st.booleans(),
    max_examples=st.sampled_from([None, 7, 25]),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)
def test_resume_anywhere_gives_the_same_batches(
    text_files: list[Path],
    stop: int,
    buffer: int,
    stride: int,
    world_size: int,
    streaming: bool,
    max_examples: int | None,
) -> None:
    options = {
        "shuffle_buffer_size": buffer,
        "stride": stride,
        "streaming": streaming,
        "max_examples": max_examples,
    }
    whole = make(text_files, batch_size=6, **options)
    batches = [batch["input_ids"].tolist() for _ in range(2) for batch in whole]
    stop = min(stop, len(batches) - 1)
    stopped = make(text_files, batch_size=6, **options)
    passes = itertools.chain.from_iterable(iter(stopped) for _ in range(2))
    for batch in itertools.islice(passes, stop):
        assert batch["input_ids"].shape[1] == 16
    state = json.loads(json.dumps(stopped.state_dict()))
    assert len(json.dumps(state)) < 300
    ranks = [
        make(text_files, batch_size=6 // world_size, rank=r, world_size=world_size, **options)
        for r in range(world_size)
    ]
    for loader in ranks:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    found = [
        [row for batch in together for row in batch["input_ids"].tolist()]
        for together in zip(
            *(itertools.chain(iter(loader), iter(loader)) for loader in ranks), strict=False
        )
    ]
    # the resumed run goes on to the end of the second epoch, at most one epoch further
    assert found[: len(batches) - stop] == batches[stop : stop + len(found)]
    assert len(found) >= len(batches) - stop


def test_a_for_left_early_is_followed_by_the_next_epoch(text_files: list[Path]) -> None:
    loader, other = make(text_files), make(text_files)
    windows_of(other)
    next(iter(loader))
    assert windows_of(loader) == windows_of(other)


def test_endless_batches_are_those_of_the_epochs(text_files: list[Path]) -> None:
    loader = make(text_files)
    expected = [batch["input_ids"].tolist() for _ in range(3) for batch in loader]
    endless = make(text_files).endless()
    found = [next(endless)[0].tolist() for _ in range(len(expected) - 5)]
    state = endless.state_dict()
    endless.close()
    resumed = make(text_files).endless()
    next(resumed)
    resumed.load_state_dict(state)
    assert resumed.epoch == 2
    for _ in range(5):
        inputs, targets = next(resumed)
        assert np.array_equal(inputs[:, 1:], targets[:, :-1])
        found.append(inputs.tolist())
    assert found == expected


def test_max_examples_takes_the_first_documents_each_epoch(text_files: list[Path]) -> None:
    tokens = stream_of(text_files)
    ends = [index for index, token in enumerate(tokens) if token == 256]
    loader = make(text_files, max_examples=20)
    expected = all_windows(tokens[: ends[19] + 1], 16, 16)
    for _ in range(2):
        assert sorted(windows_of(loader)) == sorted(expected)


def test_batches_have_the_shape_of_the_guide(text_files: list[Path]) -> None:
    loader = make(text_files, seq_len=12, batch_size=32, drop_last=True)
    shapes = {batch["input_ids"].shape for batch in loader}
    assert shapes == {(32, 12)}
    batch = next(iter(make(text_files, output_dtype="int64")))
    assert batch["input_ids"].dtype == np.int64
    assert next(iter(make(text_files)))["targets"].dtype == np.int32


def test_jsonl_and_compressed_files(tmp_path: Path, text_files: list[Path]) -> None:
    plain = windows_of(make(text_files[:1], shuffle_buffer_size=1))
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(text_files[0].read_bytes()))
    assert windows_of(make(packed, shuffle_buffer_size=1)) == plain
    rows = text_files[0].read_text().split("<|endoftext|>")
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps({"story": row}) + "\n" for row in rows))
    assert windows_of(make([lines], text_column="story", shuffle_buffer_size=1)) == plain
    with pytest.raises(DataError, match="story"):
        windows_of(make([lines]))


def test_tokenizers_of_hugging_face(text_files: list[Path]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {chr(code): code for code in range(97, 123)} | {"<|endoftext|>": 256}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    found = windows_of(make(text_files, tokenizer=theirs))
    assert found == windows_of(make(text_files))


def test_any_object_that_encodes(text_files: list[Path]) -> None:
    class Theirs:
        eos_token_id = 256

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    assert windows_of(make(text_files, tokenizer=Theirs())) == windows_of(make(text_files))
    with pytest.raises(UsageError, match="a list is not a tokenizer"):
        make(text_files, tokenizer=[1])


def test_a_tokenizer_may_be_a_path(text_files: list[Path], tmp_path: Path) -> None:
    """Text has `encode`, so a path was taken for a tokenizer, and each text for an encoding."""
    tokenizer = train_tokenizer(input=[text_files[0]], vocab_size=270).tokenizer
    tokenizer.save(tmp_path / "tok")
    wanted = windows_of(make(text_files, tokenizer=tokenizer))
    assert windows_of(make(text_files, tokenizer=tmp_path / "tok")) == wanted
    assert windows_of(make(text_files, tokenizer=str(tmp_path / "tok"))) == wanted
    with pytest.raises(LowtideError, match="nowhere"):
        make(text_files, tokenizer=str(tmp_path / "nowhere"))


def test_arguments_of_the_wrong_kind_are_refused(text_files: list[Path]) -> None:
    with pytest.raises(UsageError, match="dataset_id is list, expected a name or a path") as caught:
        StreamingDataLoader(text_files, tokenizer=ByteTokenizer())  # pyright: ignore
    assert caught.value.next_step == "give files=[…] for several files"
    for options, message in (
        ({"seq_len": 2.5}, "seq_len is 2.5, expected a whole number"),
        ({"shuffle_buffer_size": "x"}, "shuffle_buffer_size is 'x', expected a whole number"),
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size is -1, expected at least 0"),
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"rank": 0.0}, "rank is 0.0, expected a whole number"),
        ({"val_fraction": "x"}, r"val_fraction is 'x', expected a share in \[0, 1\)"),
        ({"output_dtype": "float32"}, "output_dtype is 'float32', expected int32 or int64"),
        ({"split": "val"}, "split 'val' and config_name None: files have neither"),
        ({"config_name": "en"}, "split 'train' and config_name 'en': files have neither"),
    ):
        with pytest.raises(UsageError, match=message):
            make(text_files, **options)
    with pytest.raises(UsageError, match="files has 5, expected paths"):
        make([5])
    loader = make(text_files, seed=-1)
    with pytest.raises(UsageError, match="a dict from state_dict"):
        loader.load_state_dict(None)  # pyright: ignore
    with pytest.raises(DataError, match="a loader's state is without block, delivered"):
        loader.load_state_dict({"version": 1, "epoch": 0, "fingerprint": ""})


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": "x"},
        {"delivered": None},
        {"delivered": 1.5},
        {"block": 3},
        {"block": {"number": 0, "place": 7, "skip_tokens": 0, "documents": 0}},
        {"block": {"number": -1, "place": None, "skip_tokens": 0, "documents": 0}},
        {"block": {"number": 0, "place": None}},
        {"block": {"number": 0, "place": ["x", 0, 0], "skip_tokens": 0, "documents": 0}},
        {"block": {"number": 0, "place": [-1, 0, 0], "skip_tokens": 0, "documents": 0}},
    ],
)
def test_a_damaged_state_is_refused_before_a_batch(
    text_files: list[Path], change: dict[str, Any]
) -> None:
    loader = make(text_files)
    wanted = loader.state_dict()
    with pytest.raises(DataError, match="a loader's state has"):
        loader.load_state_dict({**wanted, **change})
    assert loader.state_dict() == wanted


def test_a_folder_on_this_machine_may_be_a_path(tmp_path: Path) -> None:
    """Of a Hugging Face dataset; only its name as text was understood."""
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text('{"text": "some words in a row of a dataset"}\n' * 9)
    wanted = windows_of(StreamingDataLoader(str(tmp_path), tokenizer=ByteTokenizer(), seq_len=16))
    found = windows_of(StreamingDataLoader(tmp_path, tokenizer=ByteTokenizer(), seq_len=16))
    assert found == wanted and wanted


def test_changed_texts_or_settings_are_refused(text_files: list[Path]) -> None:
    state = make(text_files).state_dict()
    make(text_files, batch_size=9).load_state_dict(state)
    for changed in (
        make(text_files, seed=1),
        make(text_files, seq_len=17),
        make(text_files, shuffle_buffer_size=11),
        make(text_files[:2]),
    ):
        with pytest.raises(DataError, match="changed since its state was saved"):
            changed.load_state_dict(state)
    text_files[1].write_bytes(text_files[1].read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="changed since its state was saved"):
        make(text_files).load_state_dict(state)
    with pytest.raises(DataError, match="version None"):
        make(text_files).load_state_dict({})


def test_too_little_text_and_wrong_settings(tmp_path: Path, text_files: list[Path]) -> None:
    short = tmp_path / "short.txt"
    short.write_text("few words")
    with pytest.raises(DataError, match="fewer than the 65 tokens"):
        list(make(short, seq_len=64))
    with pytest.raises(DataError, match="fewer than one batch"):
        list(make(text_files, batch_size=1000, drop_last=True))
    for options, message in (
        ({"seq_len": 0}, "seq_len is 0"),
        ({"max_examples": 0}, "max_examples is 0"),
        ({"rank": 1}, "rank 1"),
        ({"dataset_id": "x"}, "either dataset_id or files"),
    ):
        with pytest.raises(UsageError, match=message):
            make(text_files, **options)
    with pytest.raises(DataError):
        make(tmp_path / "none.txt")


def test_blocks_are_bounded(text_files: list[Path]) -> None:
    windowing = Windowing(seq_len=16, stride=16, buffer_windows=5)
    blocks = list(
        iter_token_blocks(
            FileTexts(text_files),
            make_encoder(ByteTokenizer()),
            windowing,
            seed=1,
            order_files=True,
        )
    )
    assert len(blocks) > 5
    assert all(block.num_windows <= 6 for block in blocks)
    assert all(len(block.tokens) <= 6 * 16 + 17 for block in blocks)
    assert [block.start.number for block in blocks] == list(range(len(blocks)))


def test_a_dataset_read_by_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "stories"
    folder.mkdir()
    texts = [f"story number {number} is told here" for number in range(60)]
    for part in range(3):
        rows = texts[part * 20 : part * 20 + 20]
        lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (folder / f"part{part}.jsonl").write_text(lines)
    for streaming in (True, False):
        options: dict[str, Any] = {
            "tokenizer": ByteTokenizer(),
            "seq_len": 16,
            "batch_size": 4,
            "shuffle_buffer_size": 8,
            "streaming": streaming,
        }
        loader = StreamingDataLoader(str(folder), **options)
        batches = [batch["input_ids"].tolist() for _ in range(2) for batch in loader]
        tokens = sorted(token for batch in batches for row in batch for token in row)
        assert tokens.count(256) >= 110
        resumed = StreamingDataLoader(str(folder), **options)
        for _, batch in zip(range(9), resumed, strict=False):
            assert len(batch) == 2
        state = resumed.state_dict()
        again = StreamingDataLoader(str(folder), **options)
        again.load_state_dict(state)
        assert [batch["input_ids"].tolist() for batch in again] == batches[9 : len(batches) // 2]
    with pytest.raises(DataError, match=r"row 0 has no column 'story'; there are text"):
        list(StreamingDataLoader(str(folder), **options, text_column="story"))
    with pytest.raises(DataError, match="cannot be opened"):
        StreamingDataLoader(str(folder), **options, split="nothing")


def test_the_estimate_of_the_guide() -> None:
    usage = estimate_memory_usage(num_sequences=100000, seq_len=128, batch_size=32)
    assert usage["full_load_mb"] == pytest.approx(97.7, abs=0.05)
    assert usage["streaming_mb"] == 0.03
    assert usage["memory_savings"] == "99.97%"
    with pytest.raises(UsageError, match="num_sequences is 0"):
        estimate_memory_usage(num_sequences=0, seq_len=1, batch_size=1)
    assert planned_bytes(seq_len=128, shuffle_buffer_size=1000) < planned_bytes(
        seq_len=128, shuffle_buffer_size=2000
    )


@pytest.mark.parametrize("options", [{}, {"streaming": False}, {"max_examples": 20}])
@pytest.mark.parametrize("sample_bytes", [1 << 20, 200])
def test_the_share_of_an_epoch_grows_to_its_end(
    text_files: list[Path], options: Any, sample_bytes: int
) -> None:
    loader = make(text_files, **options)
    loader.estimated_windows = loader.estimate_windows(sample_bytes=sample_bytes)
    begin = loader.epochs_done(loader.state_dict())
    shares = [begin, *(loader.epochs_done(loader.state_dict()) for _ in loader)]
    assert shares[0] == 0.0 and shares[-1] == 1.0
    assert all(one <= other for one, other in itertools.pairwise(shares))
    # These documents are hardly longer than the separators between them, which are no text.
    even = np.linspace(0, 1, len(shares))
    allowed = 0.1 if sample_bytes > 200 or options.get("streaming") is False else 0.35
    assert np.abs(np.array(shares) - even).max() < allowed
    again = make(text_files, **options).estimate_windows(sample_bytes=sample_bytes)
    assert again == loader.estimated_windows


def test_a_long_text_is_encoded_in_parts_and_resumed_inside_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    words = [bytes(rng.integers(97, 123, size).astype(np.uint8)) for size in range(1, 12)]
    long = b" ".join(words[number] for number in rng.integers(0, len(words), 3000))
    path = tmp_path / "text.txt"
    path.write_bytes(b"<|endoftext|>".join([b"short", long, b"w" * 5000, long[::-1], b"the end"]))
    tokenizer = Tokenizer.from_merges([(b"a", b"b"), (b" ", b"w")])
    options = {"tokenizer": tokenizer, "shuffle_buffer_size": 7, "batch_size": 5}
    whole = [batch["input_ids"].tolist() for batch in make([path], **options)]
    estimated = make([path], **options).estimated_windows
    source, encoder = texts.FileTexts([path]), make_encoder(tokenizer, part_bytes=1000)
    options["tokenizer"] = encoder
    sizes = [len(ids) for _, ids in texts.iter_encoded(source, encoder, seed=None)]
    assert len(sizes) > 20 and max(sizes) <= 5001  # only what has no place to cut is whole
    assert make([path], **options).estimated_windows == estimated
    loader = make([path], **options)
    found, states = [], []
    for batch in loader:
        found.append(batch["input_ids"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert found == whole
    for stop in range(0, len(states) - 1, 17):
        resumed = make([path], **options)
        resumed.load_state_dict(states[stop])
        assert next(iter(resumed))["input_ids"].tolist() == whole[stop + 1]


def test_memory_is_that_of_windows_and_of_reading(
    text_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "reader_bytes", lambda inputs, options: 12_345)
    held = planned_bytes(seq_len=16, shuffle_buffer_size=10, stride=5)
    assert make(text_files, stride=5).memory_bytes == held + 12_345
    assert make(text_files, stride=5, streaming=False).memory_bytes == 0


def test_texts_that_are_no_files_take_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "open_hub_rows", lambda *given, **more: [])
    loader = make(None, dataset_id="some/texts", stride=5)
    assert loader.memory_bytes == planned_bytes(seq_len=16, shuffle_buffer_size=10, stride=5)


def test_without_an_estimate_whole_epochs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "open_hub_rows", lambda *given, **more: [])
    loader = make(None, dataset_id="some/texts")
    assert loader.estimated_windows is None
    assert loader.epochs_done({"epoch": 3}) == 3.0


def test_endless_batches_are_their_own_iterator(text_files: list[Path]) -> None:
    endless = EndlessBatches(make(text_files))
    assert iter(endless) is endless


def encoded(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int, bool]]) -> list[Any]:
    """Texts of so many bytes and tokens, ends of documents or not; what is asked for."""
    asked: list[Any] = []

    def iterate(source: Any, encoder: Any, **more: Any) -> Any:
        asked.append(more)
        for size, tokens, ends in rows:
            yield SimpleNamespace(data=b"x" * size, ends_document=ends), np.zeros(tokens, np.int32)

    monkeypatch.setattr(module, "iter_encoded", iterate)
    return asked


@pytest.mark.parametrize(
    ("total", "most", "sample", "tokens"),
    [
        (10_000, None, 300, 10_000 * 120 / 300),  # by bytes: 300 of them have 120 tokens
        (10_000, None, 100, 10_000 * 50 / 100),
        (10_000, None, 101, 10_000 * 120 / 300),
        (10_000, 30, 300, 30 * 120 / 2),  # by documents, where these are fewer
        (1000, 30, 300, 1000 * 120 / 300),
        (None, 30, 300, 30 * 120 / 2),
        (None, 30, 100, 30 * 50 / 1),  # no document has ended yet: as if one had
        (10_000, None, 301, 120),  # that was all
        (None, 30, 301, 120),
    ],
)
def test_windows_of_an_epoch_by_a_sample(
    text_files: list[Path], monkeypatch: pytest.MonkeyPatch, total: int | None, most: int | None,
    sample: int, tokens: float,
) -> None:  # fmt: skip
    loader = make(text_files, max_examples=most)
    asked = encoded(monkeypatch, [(100, 50, False), (150, 50, True), (50, 20, True)])
    loader._source = SimpleNamespace(text_bytes=total)  # type: ignore[assignment]
    expected = Windowing(16, 16, 10).count_windows(int(tokens))
    assert loader.estimate_windows(sample_bytes=sample) == max(1, expected)
    assert asked == [{"seed": None, "max_documents": most}]


def test_there_is_one_window_at_least_and_nobody_knows_of_streams(
    text_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(text_files)
    for rows in ([], [(5, 2, True)], [(0, 0, True)]):
        encoded(monkeypatch, rows)
        assert loader.estimate_windows() == 1
    assert loader.estimate_windows(sample_bytes=0) == 1
    loader._source = SimpleNamespace(text_bytes=None)  # type: ignore[assignment]
    assert loader.estimate_windows() is None


@pytest.mark.parametrize(
    ("epoch", "number", "delivered", "windows", "done"),
    [(0, 0, 0, 200, 0), (3, 0, 50, 200, 50), (2, 3, 7, 200, None), (1, 0, 999, 1000, 999),
     (1, 0, 1000, 1000, 999), (4, 0, 5000, 1000, 999)],
)  # fmt: skip
def test_epochs_that_are_done_at_a_state(
    text_files: list[Path], epoch: int, number: int, delivered: int, windows: int, done: int | None
) -> None:
    """Below the next whole number until the epoch is over, whatever the estimate says."""
    loader = make(text_files)
    loader.estimated_windows = windows
    if done is None:
        seed = texts.epoch_seed(42, epoch)
        done = windows_before(number, Windowing(16, 16, 10), seed=seed) + delivered
    state = {"epoch": epoch, "block": {"number": number}, "delivered": delivered}
    assert loader.epochs_done(state) == epoch + min(done / windows, 0.999)


def test_a_state_is_a_place_and_a_few_counts(text_files: list[Path]) -> None:
    loader = make(text_files, shuffle_buffer_size=1, batch_size=3)
    begin = {"number": 0, "place": None, "skip_tokens": 0, "documents": 0}
    assert loader.state_dict() == {
        "version": 1, "epoch": 0, "block": begin, "delivered": 0,
        "fingerprint": loader.fingerprint,
    }  # fmt: skip
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["block"]["number"], state["delivered"]) == (0, 3, 0)
    for _ in batches:
        pass
    assert loader.state_dict() == {**state, "epoch": 1, "block": begin, "delivered": 0}
    assert loader.epoch == 1


def test_the_last_batch_has_what_is_left_or_is_dropped(text_files: list[Path]) -> None:
    total = len(all_windows(stream_of(text_files), 16, 16))
    for batch in (total - 1, total, total + 1):
        sizes = [len(one["input_ids"]) for one in make(text_files, batch_size=batch)]
        assert sizes == ([batch, 1] if batch < total else [total])
        kept = make(text_files, batch_size=batch, drop_last=True)
        if batch > total:
            with pytest.raises(DataError) as caught:
                list(kept)
            assert caught.value.message == f"the texts give {total} windows, fewer than one batch"
        else:
            assert [len(one["input_ids"]) for one in kept] == [batch]
    halves = [
        make(text_files, batch_size=total // 2 + 1, rank=rank, world_size=2) for rank in (0, 1)
    ]
    rows = [[len(one["input_ids"]) for one in half] for half in halves]
    assert sum(map(sum, rows)) == total


def test_fractions_and_types(text_files: list[Path]) -> None:
    for fraction in (-0.1, 1.0, 1.5):
        with pytest.raises(UsageError, match=r"expected a share in \[0, 1\)"):
            make(text_files, val_fraction=fraction)
    whole, kept = make(text_files), make(text_files, val_fraction=0.5)
    assert 0 < len(windows_of(kept)) < len(windows_of(whole))
    for kind in ("int32", "int64"):
        for stream in (True, False):
            loader = make(text_files, output_dtype=kind, streaming=stream)
            batch = next(iter(loader))
            assert batch["input_ids"].dtype == batch["targets"].dtype == np.dtype(kind)
    for name in ("seq_len", "batch_size", "stride", "max_examples"):
        make(text_files, **{name: 1})
        with pytest.raises(UsageError, match=f"{name} is 0, expected at least 1"):
            make(text_files, **{name: 0})
    with pytest.raises(UsageError, match="give either dataset_id or files"):
        make(None)


def test_tokens_are_stored_once_and_in_order(text_files: list[Path]) -> None:
    loader = make(text_files, streaming=False, shuffle_buffer_size=1, stride=5)
    stored = loader._store_tokens()
    assert loader._store_tokens() is stored
    assert stored.read_tokens(0, stored.num_tokens).tolist() == stream_of(text_files)
    assert windows_of(loader) == all_windows(stream_of(text_files), 16, 5)
    assert loader.estimate_windows() == len(stored)
    few = make(text_files, streaming=False, max_examples=3)._store_tokens()
    documents = text_files[0].read_bytes().split(b"<|endoftext|>")[:3]
    assert few.num_tokens == sum(len(document) + 1 for document in documents)
    shuffled = make(text_files, streaming=False, shuffle_buffer_size=2)
    epochs = [windows_of(shuffled) for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])


def test_files_are_named_in_any_way(text_files: list[Path]) -> None:
    expected = windows_of(make(text_files[:1]))
    for given_files in (text_files[0], str(text_files[0]), (text_files[0],)):
        assert windows_of(make(given_files)) == expected


def test_files_of_a_stream_may_be_renamed(tmp_path: Path) -> None:
    """Their order decides, and their content; states of earlier versions had their names."""
    names = ["a.txt", "b.txt"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"some text of file number {number}, and more of it\n" * 40)
    loader = make([tmp_path / name for name in names])
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    named = loader._fingerprint_with(loader._source.named_fingerprint)
    assert named != loader.fingerprint
    loader.load_state_dict({**state, "fingerprint": named})
    expected = next(iter(loader))
    for name in names:
        (tmp_path / name).rename(tmp_path / f"new-{name}")
    again = make([tmp_path / f"new-{name}" for name in names])
    again.load_state_dict(state)
    for found, wanted in zip(next(iter(again)), expected, strict=True):
        assert np.array_equal(found, wanted)
    with pytest.raises(DataError, match="the texts, the tokenizer or the settings"):
        make([tmp_path / f"new-{name}" for name in reversed(names)]).load_state_dict(state)


def test_the_fingerprint_is_of_all_that_decides_windows(text_files: list[Path]) -> None:
    known = make(text_files).fingerprint
    assert make(text_files, batch_size=9, drop_last=True, output_dtype="int64").fingerprint == known
    others: list[dict[str, Any]] = [
        {"seed": 1}, {"stride": 5}, {"max_examples": 9}, {"streaming": False}, {"seq_len": 8},
        {"shuffle_buffer_size": 3}, {"val_fraction": 0.5},
    ]  # fmt: skip
    found = {make(text_files, **other).fingerprint for other in others}
    assert len({known, *found}) == len(others) + 1


@pytest.mark.parametrize(
    ("buffer", "most", "ordered"),
    [(0, None, False), (1, None, False), (2, None, True), (2, 5, False)],
)
def test_files_are_ordered_anew_where_windows_are_shuffled(
    text_files: list[Path], monkeypatch: pytest.MonkeyPatch, buffer: int, most: int | None,
    ordered: bool,
) -> None:  # fmt: skip
    """Not where the first documents alone are taken: they would be others."""
    asked: list[dict[str, Any]] = []

    def iterate(*given: Any, **more: Any) -> Any:
        asked.append(more)
        return iter(["block", "next"])

    monkeypatch.setattr(module, "iter_token_blocks", iterate)
    loader = make(text_files, shuffle_buffer_size=buffer, max_examples=most, seed=9)
    loader._epoch, loader._delivered = 3, 7
    assert list(loader._iter_blocks()) == [("block", 7), ("next", 0)]
    assert asked == [
        {"seed": texts.epoch_seed(9, 3), "order_files": ordered, "start": loader._start,
         "max_documents": most}
    ]  # fmt: skip


@pytest.mark.parametrize("streaming", [True, False])
def test_numbers_of_numpy_are_those_of_python(text_files: list[Path], streaming: bool) -> None:
    """With np.uint8(200) rows an epoch had no end, and a state with np.int64 was no JSON."""

    def run(kind: Any) -> list[Any]:
        loader = make(
            text_files,
            seq_len=kind(3),
            batch_size=kind(200),
            stride=kind(2),
            shuffle_buffer_size=kind(30),
            max_examples=kind(39),
            streaming=streaming,
        )
        batches = itertools.islice(loader, 10)
        rows = [(batch["input_ids"].tolist(), json.dumps(loader.state_dict())) for batch in batches]
        return [rows, loader.estimated_windows]

    assert run(np.uint8) == run(int)


@pytest.mark.parametrize("streaming", [True, False])
def test_two_loops_at_once_have_their_own_places(text_files: list[Path], streaming: bool) -> None:
    """The state of the first had the epoch of the second, and gave other batches."""
    loader = make(text_files, streaming=streaming)
    first, second = iter(loader), iter(loader)
    for _ in range(3):
        next(first)
        next(second)
    next(first)
    resumed = make(text_files, streaming=streaming)
    resumed.load_state_dict(loader.state_dict())
    expected = [batch["input_ids"].tolist() for batch in first]
    assert [batch["input_ids"].tolist() for batch in resumed] == expected
    assert loader.epoch == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_a_state_behind_the_end_of_the_texts_is_named(
    text_files: list[Path], streaming: bool
) -> None:
    """The error was about batches: "the texts give -998379 windows"."""
    loader = make(text_files, streaming=streaming)
    block = {"number": 3, "place": [0, 0, 10**6], "skip_tokens": 0, "documents": 0}
    changes: list[dict[str, Any]] = [{"delivered": 10**6}, *([{"block": block}] * streaming)]
    for change in changes:
        loader.load_state_dict({**loader.state_dict(), **change})
        with pytest.raises(DataError, match="a loader's state lies behind the end of its texts"):
            next(iter(loader))


def test_a_state_is_of_documents_with_the_same_end(text_files: list[Path]) -> None:
    """It was accepted, and gave other batches."""
    state = make(text_files).state_dict()
    with pytest.raises(DataError, match="the settings of the loader changed"):
        make(text_files, end_of_text="").load_state_dict(state)


@pytest.mark.parametrize("options", [{}, {"val_fraction": 0.5}, {"streaming": False}])
def test_a_loader_is_pickled_and_goes_on_where_it_was(
    text_files: list[Path], options: dict[str, Any]
) -> None:
    """As processes that are not forked get it, of torch's DataLoader among others."""
    loader = make(text_files, **options)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = pickle.loads(pickle.dumps(loader))
    other.load_state_dict(state)
    for ours, theirs in zip(batches, other, strict=True):
        assert np.array_equal(ours["input_ids"], theirs["input_ids"])


@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_a_copy_of_a_loader_has_a_file_of_its_own(
    text_files: list[Path], take: Callable[[Any], Any]
) -> None:
    """It read the file of the first loader, which is removed with it."""
    loader = make(text_files, streaming=False)
    expected = [batch["input_ids"].tolist() for batch in loader]
    other = take(make(text_files, streaming=False))
    assert [batch["input_ids"].tolist() for batch in other] == expected
    begun = make(text_files, streaming=False)
    next(iter(begun))
    assert begun._stored is not None
    path, other = begun._stored.source.path, take(begun)
    del begun
    gc.collect()
    assert not path.exists()
    other.load_state_dict(make(text_files, streaming=False).state_dict())
    assert [batch["input_ids"].tolist() for batch in other] == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError("damaged")])
@pytest.mark.parametrize("place", [0, 3, 11, 30])
def test_endless_batches_go_on_where_an_error_stopped_them(
    text_files: list[Path], error: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the epoch was left out, and the next one began."""
    plain = make(text_files).endless()
    expected = [next(plain)[0].tolist() for _ in range(40)]
    loader = make(text_files)
    left, make_batch = [place], loader._make_batch

    def stopped_once(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise error
        return make_batch(*given)

    monkeypatch.setattr(loader, "_make_batch", stopped_once)
    batches = loader.endless()
    found = [next(batches)[0].tolist() for _ in range(place)]
    with pytest.raises((KeyboardInterrupt, DataError)):
        next(batches)
    found += [next(batches)[0].tolist() for _ in range(40 - place)]
    assert found == expected


def test_threads_share_endless_batches(text_files: list[Path]) -> None:
    plain = make(text_files).endless()
    expected = sorted(next(plain)[0].tolist() for _ in range(80))
    batches, found = make(text_files).endless(), list[Any]()
    start = threading.Barrier(8)

    def take_ten() -> None:
        start.wait()
        for _ in range(10):
            found.append(next(batches)[0].tolist())

    threads = [threading.Thread(target=take_ten) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == expected


def test_a_forked_process_goes_on_with_endless_batches_and_refuses_a_loop_that_had_begun(
    text_files: list[Path],
) -> None:
    """Both waited for ever, for a thread of the other process."""
    loader, batches = make(text_files), make(text_files).endless()
    begun = iter(loader)
    next(begun), next(batches)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def ask() -> None:
        answers.put(next(batches)[0].tolist())
        try:
            while True:
                next(begun)
        except UsageError as error:
            answers.put(error.message)

    child = context.Process(target=ask)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == next(batches)[0].tolist()
    assert answers.get() == "this loop over a stream was begun before the process was forked"


def test_endless_batches_are_pickled_with_their_place(text_files: list[Path]) -> None:
    batches = make(text_files).endless()
    for _ in range(5):
        next(batches)
    other = pickle.loads(pickle.dumps(batches))
    assert [next(other)[0].tolist() for _ in range(30)] == [
        next(batches)[0].tolist() for _ in range(30)
    ]
