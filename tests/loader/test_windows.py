from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.loader import tokenstreams
from lowtide.loader import windows as loader_windows
from lowtide.loader.storeahead import WindowPlaces
from lowtide.loader.windows import TokenDataset
from lowtide.tokenizer import Tokenizer

from .conftest import MakeDataset

_NUMBERS = itertools.count()


def test_windows_cross_shards_and_shift_by_one(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=64)
    assert data.num_tokens == 2000
    for index in range(len(data)):
        inputs, targets = data[index]
        start = min(index * 64, 2000 - 65)
        assert np.array_equal(inputs, np.arange(start, start + 64))
        assert np.array_equal(targets, inputs + 1)
        assert inputs.dtype == targets.dtype == np.int64


def test_a_batch_is_its_windows(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=50, stride=13)
    assert repr(data) == (
        f"TokenDataset({str(counting_dataset)!r}, split='train', seq_len=50, stride=13, "
        f"windows={len(data)})"
    )
    indices = [3, 0, len(data) - 1, 3, 20]
    inputs, targets = data.get_batch(indices)
    assert inputs.shape == targets.shape == (5, 50)
    assert inputs.flags.c_contiguous and targets.flags.c_contiguous
    for row, index in enumerate(indices):
        assert np.array_equal(inputs[row], data[index][0])
        assert np.array_equal(targets[row], data[index][1])


@given(num_tokens=st.integers(2, 400), seq_len=st.integers(1, 60), stride=st.integers(1, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_no_token_is_lost(tmp_path: Path, num_tokens: int, seq_len: int, stride: int) -> None:
    if num_tokens <= seq_len or stride > seq_len:
        return
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(num_tokens, dtype=np.uint16))
    data = TokenDataset(path, split="all", seq_len=seq_len, stride=stride)
    inputs, targets = data.get_batch(range(len(data)))
    assert set(targets.ravel().tolist()) == set(range(1, num_tokens))
    assert set(inputs.ravel().tolist()) == set(range(num_tokens - 1))
    # and not one window more than that takes
    assert (len(data) - 2) * stride + seq_len < num_tokens - 1


def test_arrays_stay_as_they_were_while_others_are_read(counting_dataset: Path) -> None:
    """Memory of batches is used again only after the batch is gone."""
    data = TokenDataset(counting_dataset, seq_len=32)
    kept = [data.get_batch([index, index + 1]) for index in range(20)]
    row = data.get_batch([5])[0][0]  # the batch itself is gone, its row is not
    for _ in range(50):
        data.get_batch([40, 41])
    for index, (inputs, targets) in enumerate(kept):
        assert inputs[0, 0] == index * 32 and targets[1, 0] == (index + 1) * 32 + 1
    assert np.array_equal(row, np.arange(160, 192))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint8"])
@pytest.mark.parametrize("header", [True, False])
def test_npy_and_raw_files_of_any_id_type(tmp_path: Path, dtype: str, header: bool) -> None:
    ids = np.arange(200).astype(dtype)
    path = tmp_path / "ids.npy"
    if header:
        np.save(path, ids)
    else:
        ids.tofile(path)
    data = TokenDataset(path, split="all", seq_len=8, dtype=None if header else dtype)
    inputs, _ = data.get_batch(range(len(data)))
    assert np.array_equal(inputs.ravel()[:192], ids[:192])
    assert data.source.dtype == np.dtype(dtype)


@pytest.mark.parametrize("output_dtype", ["int64", "int32", "uint16"])
def test_output_types(tmp_path: Path, output_dtype: str) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    data = TokenDataset(path, seq_len=8, output_dtype=output_dtype)  # pyright: ignore[reportArgumentType]
    inputs, targets = data[0]
    assert inputs.dtype == targets.dtype == np.dtype(output_dtype)
    assert inputs.tolist() == list(range(8))


def test_train_and_validation_portions_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(1003, dtype=np.int32))
    train = TokenDataset(path, split="train", seq_len=10)
    val = TokenDataset(path, split="val", seq_len=10)
    assert (train.num_tokens, val.num_tokens) == (902, 101)
    assert train[len(train) - 1][1][-1] == 901
    assert val[0][0][0] == 902 and val[len(val) - 1][1][-1] == 1002
    fixed = TokenDataset(path, split="val", seq_len=10, val_tokens=50)
    assert fixed.num_tokens == 50 and fixed[0][0][0] == 953
    rest = TokenDataset(path, split="train", seq_len=10, val_tokens=50)
    assert rest.num_tokens == 953
    assert len({data.fingerprint for data in (train, val, fixed, rest)}) == 4


def test_the_log_lines_of_the_guide(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(1290, dtype=np.int32))
    text = TokenDataset(path, seq_len=128).describe()
    assert "Total tokens: 1,290" in text
    assert "Using train portion: 1,161 tokens (indices 0 to 1,161)" in text
    assert text.splitlines()[-1] == "TokenDataset (train): 10 sequences from 1,161 tokens"
    whole = TokenDataset(path, seq_len=128, split="all").describe()
    assert "Using all of them: 1,290 tokens (indices 0 to 1,290)" in whole


def test_validation_split_of_a_dataset(counting_dataset: Path) -> None:
    val = TokenDataset(counting_dataset, split="val", seq_len=100)
    assert val.num_tokens == 300 and val[0][0][0] == 5000
    assert TokenDataset(counting_dataset, eval_only=True, seq_len=100).split == "val"
    both = TokenDataset(counting_dataset, split="all", seq_len=100)
    assert both.num_tokens == 2300
    assert val.vocab_size == 60000 and val.tokenizer_dir == str(counting_dataset)


def test_nanogpt_folder_and_flat_folder(tmp_path: Path) -> None:
    np.arange(100, 400).astype("<u2").tofile(tmp_path / "train.bin")
    np.arange(400, 500).astype("<u2").tofile(tmp_path / "val.bin")
    assert TokenDataset(tmp_path, seq_len=16)[0][0][0] == 100
    assert TokenDataset(tmp_path, split="val", seq_len=16)[0][0][0] == 400
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(3):
        np.arange(number * 50, number * 50 + 50).astype("<u2").tofile(flat / f"part{number}.bin")
    data = TokenDataset(flat, eval_only=True, seq_len=149)
    assert data.num_tokens == 150 and data[0][1].tolist() == list(range(1, 150))
    with pytest.raises(DataError, match="has no train split") as caught:
        TokenDataset(flat, seq_len=16)
    assert "eval_only=True" in str(caught.value)


def test_a_wide_file_is_not_taken_for_a_narrow_one(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    np.arange(1, 500).astype("<u4").tofile(path)
    with pytest.raises(DataError, match="looks like uint32"):
        TokenDataset(path, seq_len=16)
    assert TokenDataset(path, seq_len=16, dtype="uint32")[0][0][0] == 1


@pytest.mark.parametrize(
    ("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")]
)
def test_the_header_of_llmc_is_no_tokens(
    tmp_path: Path, magic: int, version: int, dtype: str
) -> None:
    path = tmp_path / "fineweb_train_000001.bin"
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, 300
    path.write_bytes(header.tobytes() + np.arange(300).astype(dtype).tobytes())
    data = TokenDataset(path, split="all", seq_len=16)
    assert data.num_tokens == 300 and data[0][0].tolist() == list(range(16))
    os.truncate(path, 1400)
    with pytest.raises(DataError, match="its header promises 300 tokens"):
        TokenDataset(path, split="all", seq_len=16)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12
def test_pickle_and_fork_read_the_same(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=64)
    expected = data[7][0].tolist()
    assert pickle.loads(pickle.dumps(data))[7][0].tolist() == expected
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"ok" if data[7][0].tolist() == expected else b"no")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 2) == b"ok"
    os.close(reader)
    os.waitpid(child, 0)


# documents


def test_segments_follow_documents_across_shards(make_dataset: MakeDataset) -> None:
    # documents of 5, 3 | (2 more of the same document) 2 + 4, 6, with an end at the shard's end
    root = make_dataset([[np.zeros(5), np.zeros(3)], [np.zeros(6), np.zeros(6)]])
    data = TokenDataset(root, seq_len=9, stride=4)
    found = data.get_windows(range(len(data)))
    assert found.segment_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert found.positions[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0]
    assert found.segment_ids[1].tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert found.positions[1].tolist() == [0, 0, 1, 2, 0, 1, 2, 3, 4]
    assert found.segment_ids[2].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("place", ["", "train"])
def test_a_document_that_is_cut_at_the_end_of_train_ends_where_appended_text_begins(
    tmp_path: Path, place: str
) -> None:
    """With few documents validation is the end of the text, and begins within one of them."""
    root = tmp_path / "data"
    for name in ("first", "second"):
        texts = [f"{name} {word} of the low tide\n" * 40 for word in ("sand", "weed", "boat")]
        (tmp_path / name).write_text("<|endoftext|>".join(texts))
    common: dict[str, Any] = {"tokenization": "char", "tokens_per_shard": 1000, "dedup": False}
    prepare_dataset(input_files=[tmp_path / "first"], out_dir=root, shuffle=False, **common)
    border = TokenDataset(root, seq_len=8).num_tokens
    append_to_dataset(dataset_dir=root, input_files=[tmp_path / "second"])
    shards = [ids for path in sorted(root.glob("train/*.bin")) for ids in np.fromfile(path, "u2")]
    ends = np.flatnonzero(np.array(shards) == Tokenizer.load(root).end_of_text_id) + 1
    assert border not in ends, "a document is cut"
    begins = np.array(sorted({0, border, *ends.tolist()}))
    data = TokenDataset(root / place, seq_len=100, stride=7, split="all" if place else "train")
    found = data.get_windows(range(len(data)))
    number = np.searchsorted(begins, np.arange(data.num_tokens), side="right") - 1
    for row, start in enumerate(data.window_starts(range(len(data))).astype(int)):
        assert np.array_equal(found.segment_ids[row], number[start : start + 100] - number[start])
    moved = TokenDataset(root, seq_len=100, stride=border - 1, windows="documents")
    assert border in moved.window_starts([1])


@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4),
    seq_len=st.integers(1, 50),
    stride=st.integers(1, 50),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
def test_documents_against_a_plain_count(
    make_dataset: MakeDataset, lengths: list[list[int]], seq_len: int, stride: int
) -> None:
    flat = [length for shard in lengths for length in shard]
    total = sum(flat)
    if total <= seq_len:
        return
    shards = [[np.zeros(length) for length in shard] for shard in lengths]
    root = make_dataset(shards, name=f"data{next(_NUMBERS)}")
    starts = np.cumsum([0, *flat])[:-1]
    number = np.repeat(np.arange(len(flat)), flat)
    data = TokenDataset(root, seq_len=seq_len, stride=stride)
    found = data.get_windows(range(len(data)))
    for row, begin in enumerate(data.window_starts(np.arange(len(data), dtype=np.uint64))):
        expected = number[int(begin) : int(begin) + seq_len]
        assert np.array_equal(found.segment_ids[row], expected - expected[0])
        places = np.arange(int(begin), int(begin) + seq_len)
        assert np.array_equal(
            found.positions[row], places - np.maximum(starts[expected], int(begin))
        )
    aligned = TokenDataset(root, seq_len=seq_len, stride=stride, windows="documents")
    last = aligned.last_start
    for index in range(len(aligned)):
        nominal = min(index * stride, last)
        inside = starts[(starts >= nominal) & (starts < nominal + stride)]
        want = int(inside[0]) if len(inside) else nominal
        assert aligned.window_starts(np.array([index], dtype=np.uint64))[0] == min(want, last)


def test_many_documents_are_searched_not_scanned(make_dataset: MakeDataset) -> None:
    lengths = np.random.default_rng(1).integers(1, 4, 5000)
    root = make_dataset([[np.zeros(length) for length in lengths]])
    data = TokenDataset(root, seq_len=20, windows="documents")
    ends = set(np.cumsum(lengths).tolist()) | {0}
    starts = data.window_starts(np.arange(len(data) - 2, dtype=np.uint64))
    assert all(int(start) in ends for start in starts)


def test_documents_need_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    with pytest.raises(DataError, match="where documents end"):
        TokenDataset(path, seq_len=8, windows="documents")
    with pytest.raises(DataError, match="where documents end"):
        TokenDataset(path, seq_len=8).get_windows([0])


# integrity


def test_too_little_data_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    with pytest.raises(DataError, match=r"holds 90 tokens, one window of 1024 needs 1025"):
        TokenDataset(path)
    empty = tmp_path / "empty.bin"
    empty.touch()
    with pytest.raises(DataError, match="holds 0 tokens"):
        TokenDataset(empty, split="all")


def test_a_missing_file_is_named(tmp_path: Path, counting_dataset: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npy not found"):
        TokenDataset(tmp_path / "nowhere.npy")
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(DataError, match="lowtide pretokenize"):
        TokenDataset(tmp_path / "text.npy")
    for name in ("text.txt", "rows.jsonl", "rows.json"):
        (tmp_path / name).write_text("words")
        with pytest.raises(DataError, match=rf"{name} is text, not tokens"):
            TokenDataset(tmp_path / name)
    (tmp_path / "tokens.dat").write_bytes(b"1234")
    with pytest.raises(DataError, match=r"tokens\.dat has no NumPy header"):
        TokenDataset(tmp_path / "tokens.dat")
    (counting_dataset / "train" / "shard_00002.bin").unlink()
    with pytest.raises(DataError, match=r"shard_00002\.bin"):
        TokenDataset(counting_dataset, seq_len=64)


def test_a_shard_that_shrinks_while_open_is_an_error_not_a_crash(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=64)
    _ = data[0]  # shard 0 is open
    for name in ("shard_00000.bin", "shard_00004.bin"):
        os.truncate(counting_dataset / "train" / name, 100)
    with pytest.raises(DataError, match=r"shard_00000\.bin .* cut short"):
        _ = data[5]
    with pytest.raises(DataError, match=r"shard_00004\.bin holds 100 bytes"):
        _ = data[len(data) - 1]


def test_a_shard_that_goes_away_is_named(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=64)
    (counting_dataset / "train" / "shard_00004.bin").unlink()
    with pytest.raises(LowtideError, match=r"no such file[\s\S]*shard_00004\.bin"):
        _ = data[len(data) - 1]


def test_ids_beyond_the_vocabulary_are_found_on_touch(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=64)
    path = counting_dataset / "train" / "shard_00004.bin"
    ids = np.fromfile(path, dtype="<u2")
    ids[500] = 60000
    ids.tofile(path)
    _ = data[0]
    with pytest.raises(
        DataError, match=r"shard_00004\.bin has id 60000 at token 500, the vocabulary ends at 59999"
    ):
        data.get_batch(range(len(data)))


def test_negative_and_too_large_ids_of_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    ids = np.arange(100, dtype=np.int32)
    ids[50] = -3
    np.save(path, ids)
    with pytest.raises(DataError, match="has id -3 at token 50"):
        TokenDataset(path, split="all", seq_len=99)[0]
    ids[50] = 70000
    np.save(path, ids)
    with pytest.raises(DataError, match="has id 70000 at token 50, uint16 ends at 65535"):
        TokenDataset(path, split="all", seq_len=99, output_dtype="uint16")[0]
    with pytest.raises(DataError, match="has id 70000 at token 50, the vocabulary ends at 50256"):
        TokenDataset(path, split="all", seq_len=99, vocab_size=50257)[0]


def test_a_dataset_of_a_larger_vocabulary_is_refused(counting_dataset: Path) -> None:
    with pytest.raises(DataError, match="vocabulary of 60000 does not fit into the 50257"):
        TokenDataset(counting_dataset, seq_len=64, vocab_size=50257)


def test_damaged_and_foreign_npy_files(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    os.truncate(path, 300)
    with pytest.raises(DataError, match=r"cut short: its header promises 100 tokens, 43 are there"):
        TokenDataset(path, seq_len=8)
    path.write_bytes(path.read_bytes().replace(b"'descr'", b"'d(scr'"))
    with pytest.raises(DataError, match="damaged NumPy header"):
        TokenDataset(path, seq_len=8)
    np.save(path, np.zeros((4, 5), dtype=np.int32))
    with pytest.raises(DataError, match=r"shape \(4, 5\), expected one row"):
        TokenDataset(path, seq_len=8)
    np.save(path, np.zeros(50, dtype=np.float32))
    with pytest.raises(DataError, match="float32"):
        TokenDataset(path, seq_len=8)
    np.save(path, np.zeros(50, dtype=">i4"))
    with pytest.raises(DataError, match="little-endian"):
        TokenDataset(path, seq_len=8)
    np.save(path, np.zeros(50, dtype=np.int32))
    with pytest.raises(DataError, match="holds int32, not uint16 as given"):
        TokenDataset(path, seq_len=8, dtype="uint16")
    path.write_bytes(b"\x01\x02\x03" * 101)
    with pytest.raises(DataError, match="no NumPy header"):
        TokenDataset(path, seq_len=8)
    with pytest.raises(DataError, match="303 bytes, not a whole number of uint16"):
        TokenDataset(path, seq_len=8, dtype="uint16")


def test_settings_that_make_no_sense(counting_dataset: Path) -> None:
    for options, message in (
        ({"seq_len": 0}, "seq_len is 0"),
        ({"stride": -1}, "stride is -1"),
        ({"split": "test"}, "split 'test'"),
        ({"windows": "files"}, "windows 'files'"),
        ({"output_dtype": "float32"}, "output_dtype 'float32'"),
        ({"val_fraction": 1.5}, "val_fraction 1.5"),
    ):
        with pytest.raises(UsageError, match=message):
            TokenDataset(counting_dataset, **options)
    data = TokenDataset(counting_dataset, seq_len=64)
    for index in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            _ = data[index]
    with pytest.raises(IndexError):
        data.get_batch([0, len(data)])
    with pytest.raises(UsageError):
        data.get_batch([0.5])  # pyright: ignore[reportArgumentType]
    assert data.get_batch([])[0].shape == (0, 64)
    assert data[-1][0].tolist() == data[len(data) - 1][0].tolist()


def test_thousands_of_shards_in_few_descriptors(tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    for number in range(3000):
        np.full(10, number, dtype="<u2").tofile(folder / f"{number:05}.bin")
    data = TokenDataset(folder, eval_only=True, seq_len=30, dtype="uint16")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    order = np.random.default_rng(2).permutation(len(data))
    for begin in range(0, len(data), 100):
        inputs, _ = data.get_batch(order[begin : begin + 100])
        assert inputs[0, 0] == min(order[begin] * 30, data.last_start) // 10
    assert len(os.listdir("/proc/self/fd")) - before <= 256  # noqa: PTH208


def test_indices_of_any_integer_type_and_slices(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=10)
    expected, _ = data.get_batch([1, 3])
    for indices in (
        np.array([1, 3], dtype=np.uint8),
        np.array([1, 3], dtype=">i8"),
        np.arange(1, 5)[::2],
        range(1, 5, 2),
    ):
        np.testing.assert_array_equal(data.get_batch(indices)[0], expected)
    np.testing.assert_array_equal(data[1:5:2][0], expected)
    assert data[0][0].dtype.char == np.dtype(np.int64).char
    with pytest.raises(IndexError, match="window -1 of"):
        data.get_batch([-1])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("output_dtype", ["int64", "int32", "uint16"])
@pytest.mark.parametrize("length", [1, 7, 8, 17, 64])
def test_every_type_is_widened_into_every_other(
    tmp_path: Path, dtype: str, output_dtype: str, length: int
) -> None:
    ids = np.random.default_rng(length).integers(0, 250, 300).astype(dtype)
    ids[-1] = min(int(np.iinfo(dtype).max), 65535)
    ids.tofile(tmp_path / "ids.npy")
    data = TokenDataset(
        tmp_path / "ids.npy",
        split="all",
        dtype=dtype,
        seq_len=length,
        output_dtype=output_dtype,  # pyright: ignore[reportArgumentType]
    )
    for start in (0, 1, len(ids) - length - 1):
        inputs, targets = data.gather(np.array([start], dtype=np.uint64))
        assert inputs.dtype == output_dtype
        np.testing.assert_array_equal(inputs[0], ids[start : start + length])
        np.testing.assert_array_equal(targets[0], ids[start + 1 : start + length + 1])


def test_negative_ids_are_called_so(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, -5, 4], dtype=np.int32))
    data = TokenDataset(tmp_path / "ids.npy", split="all", seq_len=3)
    with pytest.raises(DataError, match="id -5 at token 2, ids begin at 0"):
        data.get_batch([0])


def test_worker_processes_end_quietly(counting_dataset: Path) -> None:
    code = (
        "import sys; from lowtide import TokenDataset; "
        "sys.kept = TokenDataset(sys.argv[1], seq_len=8); sys.kept[0]; sys.kept.me = sys"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(counting_dataset)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_shifted_windows_move_together_and_stay_inside(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(1003, dtype=np.uint16))
    data = TokenDataset(tmp_path / "ids.npy", split="all", seq_len=100)

    def starts(order: str, first: int, count: int) -> list[int]:
        (plan,) = data.plan_rows(order, seed=5, first=first, count=count)  # pyright: ignore[reportArgumentType]
        return plan.starts.tolist()

    size = len(data)
    assert starts("shifted", 0, size) == starts("shuffle", 0, size)
    plain, shifted = (starts(order, size, size) for order in ("shuffle", "shifted"))
    moved = {b - a for a, b in zip(plain, shifted, strict=True) if b < data.last_start}
    assert len(moved) == 1
    assert 0 < moved.pop() < 100
    assert max(shifted) == data.last_start
    assert [*starts("shifted", size - 3, 5), *starts("shifted", size + 2, size)] == starts(
        "shifted", size - 3, size + 5
    )


def test_few_shards_stay_open_where_few_files_may_be(monkeypatch):
    for allowed, expected in ((80, 10), (7, 1), (10**6, tokenstreams._MAX_OPEN_FILES)):
        monkeypatch.setattr(
            tokenstreams.resource, "getrlimit", lambda kind, allowed=allowed: (allowed, allowed)
        )
        assert tokenstreams._max_open_files() == expected
    unlimited = tokenstreams.resource.RLIM_INFINITY
    monkeypatch.setattr(tokenstreams.resource, "getrlimit", lambda kind: (unlimited, unlimited))
    assert tokenstreams._max_open_files() == tokenstreams._MAX_OPEN_FILES


def test_all_windows_come_one_by_one(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=8)
    found = list(data)
    assert len(found) == len(data)
    assert all(np.array_equal(row[1], data[place][1]) for place, row in enumerate(found))


@pytest.mark.parametrize(("windows", "reach"), [("stream", 0), ("documents", 5)])
def test_a_stream_is_told_how_far_windows_may_move(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, windows: Any, reach: int
) -> None:
    data = TokenDataset(make_dataset([[[1] * 40]]), seq_len=8, stride=5, windows=windows)
    told: list[Any] = []
    monkeypatch.setattr(loader_windows, "open_tokens", lambda *given, **more: told.append(more))
    data._make_stream()
    assert told[0]["places"] == WindowPlaces(8, 5, reach, len(data))


@pytest.mark.parametrize(
    ("known", "given", "agreed"),
    [(None, None, None), (None, 50, 50), (40, None, 40), (40, 50, 40), (50, 50, 50)],
)
def test_a_vocabulary_fits_into_the_ids_expected(
    tmp_path: Path, known: int | None, given: int | None, agreed: int | None
) -> None:
    data = TokenDataset(np.arange(20), split="all", seq_len=4)
    data.source = dataclasses.replace(data.source, vocab_size=known)
    assert data._agreed_vocab_size(given, known) == agreed
    if known is not None:
        with pytest.raises(DataError, match=f"vocabulary of {known} does not fit into the"):
            data._agreed_vocab_size(known - 1, known)


@pytest.mark.parametrize(
    ("dtype", "output", "vocab_size", "limit"),
    [
        ("uint16", "int64", None, 1 << 16), ("int16", "int64", None, 1 << 15),
        ("uint32", "int32", None, 1 << 31), ("uint32", "int64", None, 1 << 32),
        ("int64", "uint16", None, 1 << 16), ("uint64", "int64", None, 1 << 63),
        ("int64", "int64", None, 1 << 63), ("uint16", "int64", 300, 300),
        ("uint8", "int64", 300, 256),
    ],
)  # fmt: skip
def test_the_largest_id_is_what_all_can_hold(
    dtype: str, output: Any, vocab_size: int | None, limit: int
) -> None:
    ids = np.zeros(20, dtype)
    data = TokenDataset(ids, split="all", seq_len=4, output_dtype=output, vocab_size=vocab_size)
    assert data._id_limit() == limit


def test_one_window_needs_one_token_more_than_it_has() -> None:
    assert len(TokenDataset(np.arange(5), split="all", seq_len=4)) == 1
    with pytest.raises(DataError) as caught:
        TokenDataset(np.arange(4), split="all", seq_len=4)
    assert caught.value.message == "the all split holds 4 tokens, one window of 4 needs 5"


def test_tokens_are_read_from_any_place_within() -> None:
    data = TokenDataset(np.arange(100, 120), split="all", seq_len=4)
    assert data.read_tokens(0, 20).tolist() == list(range(100, 120))
    assert data.read_tokens(20, 0).tolist() == [] and data.read_tokens(19, 1).tolist() == [119]
    for first, count in ((-1, 2), (0, 21), (20, 1), (3, -1)):
        with pytest.raises(IndexError, match=f"tokens {first} to {first + count} of 20"):
            data.read_tokens(first, count)
    for index in (-5, 4):
        with pytest.raises(IndexError, match=f"window {index} of 4"):
            TokenDataset(np.arange(17), split="all", seq_len=4)[index]


def test_epochs_by_samples() -> None:
    data = TokenDataset(np.arange(17), split="all", seq_len=4)
    assert [data.epoch_of(samples) for samples in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert (data.last_start, data.stride, len(data)) == (12, 4, 4)
    assert "windows=4)" in repr(data) and "split='all'" in repr(data)


def test_an_index_is_a_number_of_any_kind() -> None:
    """A small number of NumPy overflowed where there are more windows than it can count."""
    data = TokenDataset(np.arange(4000), split="all", seq_len=4)
    assert data[np.uint8(3)][0][0] == 12 and data[np.int8(-1)][1][-1] == 3999
    for wrong in ([0, 1], np.array([0, 1]), "3", None, 1.5):
        with pytest.raises(UsageError, match="expected a whole number or a slice"):
            data[wrong]  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": "0.1"}, "val_fraction '0.1' does not lie between 0 and 1"),
        ({"val_tokens": 100.5}, "val_tokens is 100.5, expected a whole number"),
        ({"vocab_size": "70000"}, "vocab_size is '70000', expected a whole number"),
        ({"vocab_size": 0}, "vocab_size is 0, expected at least 1"),
        ({"dtype": "uint16"}, "the array holds int64, not uint16 as given"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenDataset(np.arange(4000), seq_len=4, **options)


def test_the_splits_of_a_folder_are_its_own(counting_dataset: Path) -> None:
    with pytest.raises(UsageError, match="val_tokens is 50, and a folder has splits of its own"):
        TokenDataset(counting_dataset, split="val", seq_len=4, val_tokens=50)


def test_a_map_of_a_file_that_was_replaced_has_its_own_ids(tmp_path: Path) -> None:
    """The file of that name was read: other ids than those of the array that was given."""
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(4000))
    mapped = np.load(path, mmap_mode="r")
    assert TokenDataset(mapped, split="all", seq_len=4).source.array is None
    np.save(tmp_path / "new.npy", np.arange(4000)[::-1])
    (tmp_path / "new.npy").replace(path)
    data = TokenDataset(mapped[7:], split="all", seq_len=4)
    assert data[0][0].tolist() == [7, 8, 9, 10]
