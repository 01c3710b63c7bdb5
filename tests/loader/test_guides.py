"""What the users' guides show, with little more than the import lines changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .conftest import MakeDataset


def test_streaming_guide_basic_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trained = tokenizers.ByteLevelBPETokenizer()
    stories = [f"Once upon a time there was a number called {n}." for n in range(900)]
    trained.train_from_iterator(stories, vocab_size=300, show_progress=False)
    trained.save("tokenizer.json")
    Path("TinyStories").mkdir()
    Path("TinyStories/train.jsonl").write_text("".join(f'{{"text": "{s}"}}\n' for s in stories))

    from tokenizers import Tokenizer

    from lowtide import StreamingDataLoader

    tokenizer = Tokenizer.from_file("tokenizer.json")

    # Create streaming data loader
    loader = StreamingDataLoader(
        dataset_id="./TinyStories",
        tokenizer=tokenizer,
        seq_len=128,
        batch_size=32,
        streaming=True,  # KEY: Enable streaming
    )

    # Iterate through data
    for batch in loader:
        # batch contains only 32 sequences at a time!
        print(batch["input_ids"].shape)  # (32, 128)
    assert capsys.readouterr().out.startswith("(32, 128)\n")


def test_streaming_guide_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    from lowtide import estimate_memory_usage

    # See memory usage for different strategies
    usage = estimate_memory_usage(num_sequences=100000, seq_len=128, batch_size=32)

    print(f"Full load: {usage['full_load_mb']} MB")
    print(f"Streaming: {usage['streaming_mb']} MB")
    print(f"Savings: {usage['memory_savings']}")
    assert capsys.readouterr().out.split("\n")[:3] == [
        "Full load: 97.66 MB",
        "Streaming: 0.03 MB",
        "Savings: 99.97%",
    ]


def test_sharded_guide_dual_evaluation(make_dataset: MakeDataset) -> None:
    domain_dir = make_dataset([[np.arange(500)]], [[np.arange(500, 700)]], name="domain_corpus")
    general_dir = make_dataset([[np.arange(50)]], [[np.arange(900, 1200)]], name="general_corpus")

    from lowtide import BatchLoader, TokenDataset

    # Domain loader (train + val)
    domain_train = TokenDataset(domain_dir, split="train", sequence_length=16)
    domain_val = TokenDataset(domain_dir, split="val", sequence_length=16)

    # General eval loader (val only - no training data loaded)
    general = TokenDataset(
        general_dir,
        sequence_length=16,
        eval_only=True,  # Only loads val shards
    )
    assert general.num_tokens == 300 and general[0][0][0] == 900
    assert domain_val.num_tokens == 200
    with BatchLoader(domain_train, batch_size=4, order="random") as loader:
        inputs, targets = next(loader)
    assert inputs.shape == (4, 16) and np.array_equal(targets, inputs + 1)


def test_sharded_guide_raw_access(make_dataset: MakeDataset) -> None:
    root = make_dataset([[np.arange(2000)]])
    data = np.memmap(root / "train" / "shard_00000.bin", dtype=np.uint16, mode="r")
    batch = data[1000:1256]
    assert batch.tolist() == list(range(1000, 1256))


def test_sharded_guide_shards_moved_in(make_dataset: MakeDataset) -> None:
    root = make_dataset([[np.arange(100)]], [[np.arange(50)]], name="my_dataset")
    new = make_dataset([[np.arange(100, 160)]], name="new_shards")

    from lowtide import TokenDataset

    (new / "train" / "shard_00000.bin").rename(root / "train" / "shard_00009.bin")
    data = TokenDataset(root, sequence_length=8)
    assert data.num_tokens == 160 and data[len(data) - 1][1][-1] == 159


def test_mapped_guide_portions(tmp_path: Path) -> None:
    from lowtide import TokenDataset

    path = tmp_path / "c4_subset_large.npy"
    np.save(path, (np.arange(12_345) % 1000).astype(np.int32))
    train = TokenDataset(path, split="train", sequence_length=128)
    val = TokenDataset(path, split="val", sequence_length=128)
    assert train.num_tokens == 11_110 and val.num_tokens == 1_235
    assert "Total tokens: 12,345" in train.describe()
    assert "Using train portion: 11,110 tokens (indices 0 to 11,110)" in train.describe()
    assert "Using val portion: 1,235 tokens (indices 11,110 to 12,345)" in val.describe()
