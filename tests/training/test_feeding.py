"""Batches for the loop: as tensors, with the position of the batch in use, one ahead on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowtide.errors import DataError, UsageError
from lowtide.loader.batches import BatchLoader
from lowtide.loader.mixtures import Mixture
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.tokenizer import Tokenizer
from lowtide.training import batchsources, feeding
from lowtide.training.batchsources import open_batches
from lowtide.training.distributed import ProcessGroup
from lowtide.training.feeding import Feed
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer

CPU = torch.device("cpu")
CONFIG = GPTConfig(30, 16, 1, 32, 2)


class Source:
    """Batches 0, 1, 2… whose position is the number of the next one."""

    def __init__(self):
        self.number, self.closed = 0, False

    def __next__(self):
        self.number += 1
        return np.full((1, 2), self.number - 1, np.uint16), torch.full((1, 2), self.number)

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]

    def close(self):
        self.closed = True


def test_batches_are_tensors_and_the_position_is_that_of_the_next():
    source = Source()
    source.number = 3
    feed = Feed(source, CPU)
    assert feed.state_dict() == {"number": 3}
    inputs, targets = next(feed)
    assert (inputs.dtype, targets.dtype) == (torch.long, torch.long)
    assert (inputs.tolist(), targets.tolist()) == ([[3, 3]], [[4, 4]])
    assert feed.state_dict() == {"number": 4}
    feed.load_state_dict({"number": 9})
    assert feed.state_dict() == {"number": 9}
    assert next(feed)[0].tolist() == [[9, 9]]
    feed.close()
    assert source.closed


@pytest.fixture
def events(monkeypatch):
    """Stand-ins for CUDA's events: what was recorded and waited for, by number."""
    log = []

    class Event:
        def __init__(self):
            self.number = sum(kind == "made" for kind, _ in log)
            log.append(("made", self.number))

        def record(self):
            log.append(("recorded", self.number))

        def synchronize(self):
            log.append(("waited", self.number))

    monkeypatch.setattr(feeding.torch.cuda, "Event", Event)
    return log


def test_on_a_gpu_the_next_batch_is_copied_while_this_one_is_computed(events, monkeypatch):
    source = Source()
    feed = Feed(source, torch.device("cuda"))
    monkeypatch.setattr(
        Feed, "_tensor", lambda self, array: torch.as_tensor(np.asarray(array).astype(np.int64))
    )
    assert next(feed)[0].tolist() == [[0, 0]]
    assert source.number == 2  # the next is on its way
    assert feed.state_dict() == {"number": 1}  # and does not count
    assert next(feed)[0].tolist() == [[1, 1]]
    assert feed.state_dict() == {"number": 2}
    for _ in range(4):
        next(feed)
    assert [number for kind, number in events if kind == "recorded"] == list(range(7))
    # Host arrays stay until their copy is over: the last four of seven are still held.
    assert [number for kind, number in events if kind == "waited"] == [0, 1, 2]
    assert len(feed._copying) == 4
    feed.load_state_dict({"number": 50})
    assert next(feed)[0].tolist() == [[50, 50]]  # what was ahead is forgotten
    feed.close()
    assert feed._ahead is None and source.closed


def test_a_dataset_is_loaded_as_the_settings_say(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(1000, dtype=np.uint16))
    data = TokenDataset(tmp_path / "ids.npy", split="all", seq_len=10)
    settings = train_settings(order="sequential", seed=5, num_workers=3, seq_len=10)
    group = ProcessGroup(1, 2, CPU)
    with open_batches(data, settings, group, rows=4, config=CONFIG) as loader:
        assert isinstance(loader, BatchLoader)
        inputs, _ = next(loader)
        alone = BatchLoader(data, batch_size=4, order="sequential", seed=5, rank=1, world_size=2)
        with alone:
            np.testing.assert_array_equal(inputs, next(alone)[0])
    made = {}
    patched = SimpleNamespace(plan_rows=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batchsources, "BatchLoader", lambda data, **options: made.update(options))
        for device in ("cpu", "cuda"):
            group = ProcessGroup(1, 2, torch.device(device))
            open_batches(patched, settings, group, rows=4, config=CONFIG)
            assert made == {
                "batch_size": 4,
                "order": "sequential",
                "seed": 5,
                "prefetch_batches": 3,
                "rank": 1,
                "world_size": 2,
                "pin_memory": device == "cuda",
            }


def test_any_iterator_of_batches_is_taken_as_it_is():
    source, group = Source(), ProcessGroup(0, 1, CPU)
    batches = open_batches(source, train_settings(), group, rows=4, config=CONFIG)
    inputs, targets = next(batches)
    assert inputs.dtype == np.uint16 and targets.tolist() == [[1, 1]]
    assert batches.state_dict() == {"number": 1}
    batches.load_state_dict({"number": 7})
    assert next(batches)[0].tolist() == [[7, 7]]
    batches.close()
    assert source.closed
    loader = BatchLoader(TokenDataset(np.arange(99) % 9, seq_len=4), batch_size=2)
    with loader:
        assert open_batches(loader, train_settings(), group, rows=2, config=CONFIG) is loader


@pytest.mark.parametrize("where", ["data", "mixture", "val_data", "eval_data"])
@pytest.mark.parametrize("known", [None, 37])
def test_ids_that_the_model_has_no_rows_for_are_refused(tmp_path, where, known):
    """At once where the vocabulary is known, else as they are read; they were an IndexError."""
    ids = np.arange(400, dtype=np.uint16) % 37
    fine = TokenDataset(ids % 30, seq_len=16, split="all")
    other = TokenDataset(ids, seq_len=16, split="all", vocab_size=known)
    given: dict[str, Any] = {
        "data": {"data": other},
        "mixture": {"data": Mixture({"fine": fine, "other": other})},
        "val_data": {"data": fine, "val_data": other},
        "eval_data": {"data": fine, "eval_data": {"more": other}},
    }[where]
    trainer = Trainer(
        GPT(GPTConfig(30, 16, 1, 32, 2)),
        **given,
        model_name="run",
        checkpoints_dir=tmp_path,
        max_iters=9,
        batch_size=8,
    )
    said = "vocabulary of 37 does not fit into the 30" if known else "the vocabulary ends at 29"
    with pytest.raises(DataError, match=said):
        trainer.fit()
    other.bound_ids(37)
    assert other.get_batch([0])[0].max() < 37  # another model may take them


def test_evaluated_ids_that_the_tokenizer_does_not_have_are_refused(tmp_path):
    """Their bytes are counted by it; they were an IndexError."""
    ids = np.arange(400, dtype=np.uint16) % 37
    trainer = Trainer(
        GPT(GPTConfig(37, 16, 1, 32, 2)),
        data=TokenDataset(ids, seq_len=16, split="all"),
        val_data=TokenDataset(ids, seq_len=16, split="all"),
        tokenizer=Tokenizer.from_characters("ab"),
        model_name="run", checkpoints_dir=tmp_path, max_iters=2, batch_size=8, device="cpu",
    )  # fmt: skip
    with pytest.raises(DataError, match="the vocabulary ends at 3"):
        trainer.evaluate()


def test_steps_are_counted_by_the_rows_of_the_data(tmp_path):
    """Not by the context of a model that takes longer ones: half of the steps were taken."""
    data = TokenDataset(np.arange(400, dtype=np.uint16) % 30, seq_len=8, split="all")
    options: dict[str, Any] = {"checkpoints_dir": tmp_path, "max_iters": 2, "batch_size": 4}
    loader = BatchLoader(data, batch_size=4)
    loader.close()
    for given in (loader, Mixture({"a": data, "b": data}), data):
        trainer = Trainer(GPT(CONFIG), data=given, model_name="a", device="cpu", **options)
        assert trainer.settings.tokens_per_step == 32
    trainer.fit()
    more = {**options, "max_iters": 3}
    assert Trainer(GPT(CONFIG), data=data, model_name="a", resume=True, **more).fit().steps == 3
    other = Trainer(GPT(CONFIG), data=data, model_name="b", seq_len=16, **options)
    with pytest.raises(UsageError, match="seq_len is 16, expected 8, as rows of the data"):
        other.fit()


class Letters:
    """A tokenizer that does not tell how many ids it has."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("tells", [True, False])
def test_ids_of_a_stream_that_the_model_has_no_rows_for_are_refused(tmp_path, streaming, tells):
    """At once where the tokenizer tells how many it has, else as batches are made."""
    letters = "".join(map(chr, range(97, 97 + 20)))
    path = tmp_path / "a.txt"
    path.write_text(letters * 40)
    tokenizer = Tokenizer.from_characters(letters) if tells else Letters()
    stream = StreamingDataLoader(
        files=path, tokenizer=tokenizer, seq_len=16, batch_size=8, streaming=streaming
    )

    def train(name, rows):
        model = GPT(GPTConfig(rows, 16, 1, 32, 2))
        options = {"model_name": name, "checkpoints_dir": tmp_path, "max_iters": 2}
        return Trainer(model, data=stream, eval_interval=9, device="cpu", **options).fit()

    said = f"ids up to {tokenizer.vocab_size - 1 if tells else 19}, the model.* ends at 11"
    with pytest.raises(DataError, match=said):
        train("small", 12)
    assert (tmp_path / "small" / "settings.json").exists() is not tells
    assert train("large", 24).steps == 2  # another model may take them


def test_batches_of_a_stream_alone_have_all_ids(tmp_path):
    (tmp_path / "a.txt").write_text("abcz" * 40)
    stream = StreamingDataLoader(
        files=tmp_path / "a.txt", tokenizer=Letters(), seq_len=16, batch_size=2
    )
    assert next(iter(stream))["input_ids"].max() == 25
