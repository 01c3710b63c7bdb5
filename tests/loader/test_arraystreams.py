"""Ids in memory, and mapped ones, are read as those of files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset

IDS = (np.arange(500) * 7 % 301).astype(np.uint16)


@pytest.mark.parametrize("split", ["train", "val", "all"])
def test_an_array_is_what_its_file_is(split: str, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    stored = TokenDataset(tmp_path / "ids.npy", split=split, seq_len=16)
    for given in (IDS, IDS.astype(np.int64), list(IDS.tolist()), IDS.repeat(2)[::2]):
        data = TokenDataset(given, split=split, seq_len=16)
        assert len(data) == len(stored)
        everything = range(len(data))
        for ours, theirs in zip(
            data.get_batch(everything), stored.get_batch(everything), strict=True
        ):
            assert np.array_equal(ours, theirs)
        assert np.array_equal(data.read_tokens(3, 9), stored.read_tokens(3, 9))


def test_batches_of_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    with (
        BatchLoader(TokenDataset(IDS, seq_len=16), batch_size=4, seed=3) as ours,
        BatchLoader(TokenDataset(tmp_path / "ids.npy", seq_len=16), batch_size=4, seed=3) as theirs,
    ):
        for _ in range(8):
            assert np.array_equal(next(ours)[1], next(theirs)[1])


def test_a_mapped_array_is_read_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, IDS)
    mapped = np.load(path, mmap_mode="r")
    part = mapped[100:400]
    for given in (part, part[:], np.asarray(mapped)[100:400]):
        data = TokenDataset(given, split="all", seq_len=16)
        assert data.source.path == path and data.source.array is None
        assert np.array_equal(data.read_tokens(0, 300), IDS[100:400])
    copied = np.load(path, mmap_mode="c")
    copied[0] = 9  # which its file does not have
    assert TokenDataset(copied, seq_len=16)[0][0][0] == 9
    assert TokenDataset(mapped[::2], seq_len=16)[0][0][1] == IDS[2]


def test_it_is_known_again_by_its_ids() -> None:
    known = TokenDataset(IDS, seq_len=16).fingerprint
    other = IDS.copy()
    other[-1] += 1
    assert TokenDataset(IDS.copy(), seq_len=16).fingerprint == known
    assert TokenDataset(other, split="all", seq_len=16).fingerprint != known
    assert TokenDataset(IDS, split="val", seq_len=16).fingerprint != known
    copy = pickle.loads(pickle.dumps(TokenDataset(IDS, seq_len=16)))
    assert np.array_equal(copy[1][0], IDS[16:32]) and "in memory" in copy.describe()


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="id -1 at token 20, ids begin at 0"):
        data = TokenDataset(np.where(np.arange(99) == 20, -1, 5), split="all", seq_len=16)
        data.get_batch(range(len(data)))
    with pytest.raises(DataError, match="id 294 at token"):
        TokenDataset(IDS, seq_len=16, vocab_size=294).get_batch(range(20))
    for given in (IDS.reshape(5, 100), IDS.astype(float), IDS.astype(">u2"), None):
        with pytest.raises(UsageError, match="holds no ids"):
            TokenDataset(given, seq_len=16)
    with pytest.raises(DataError, match=r"no \.docs files"):
        TokenDataset(IDS, seq_len=16, windows="documents")
