"""Training and evaluation on files of ids with one flipped bit: named, and nothing is saved."""

import os
from pathlib import Path

import pytest

from lowtide import evaluate, train
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError, UsageError
from lowtide.loader.windows import TokenDataset
from lowtide.training.callbacks import Callbacks
from lowtide.training.trainer import Trainer

SHAPE = {
    "num_layers": 1, "width": 16, "num_heads": 1, "seq_len": 16, "batch_size": 2, "max_iters": 4,
    "eval_interval": 2, "eval_iters": 1, "save_interval": 100, "sample_tokens": 0, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def ids(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "a.txt"
    text.write_text("".join(f"line {number} of many words\n" for number in range(400)))
    return pretokenize_file(file=text, tokenization="char").path


def flip(path):
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # another id of the vocabulary
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_run_on_damaged_ids_ends_without_its_last_checkpoint(ids):
    flip(ids)
    with pytest.raises(DataError, match="is damaged") as caught:
        train(train_data_path=ids, **SHAPE)
    assert caught.value.path == ids
    assert not list(Path("checkpoints/model").glob("steps/*"))


def test_asked_to_it_trains_on_them_as_they_are(ids):
    flip(ids)
    assert train(train_data_path=ids, check_data=False, **SHAPE).steps == 4


def test_a_run_goes_on_when_the_file_is_back(ids):
    whole = ids.read_bytes()
    train(train_data_path=ids, **{**SHAPE, "max_iters": 2})
    flip(ids)
    with pytest.raises(DataError, match=r"is damaged|the data, or"):
        train(train_data_path=ids, **SHAPE)
    ids.write_bytes(whole)
    assert train(train_data_path=ids, **SHAPE).steps == 4


def test_damage_found_under_way_stops_the_run_at_that_step(make_trainer, monkeypatch):
    trainer = make_trainer(max_iters=10_000, save_interval=10_000, eval_interval=10_000)
    loops, open_loop = [], trainer._open_loop
    error = DataError("a shard is damaged")

    def find(event):
        if event.step == 3:
            loops[0].check.problem = error

    monkeypatch.setattr(trainer, "_callbacks", Callbacks(find, None, None))
    monkeypatch.setattr(
        trainer, "_open_loop", lambda *given: (loops.append(open_loop(*given)), loops[0])[1]
    )
    with pytest.raises(DataError) as caught:
        trainer.fit()
    assert caught.value is error
    assert loops[0].steps.state.step == 3
    assert not trainer.run.exists()


def test_evaluation_refuses_them_too(ids):
    train(train_data_path=ids, **SHAPE)
    assert evaluate(model_name="model", dataset_dir=[str(ids)])
    flip(ids)
    with pytest.raises(DataError, match="is damaged"):
        evaluate(model_name="model", dataset_dir=[str(ids)])
    assert evaluate(model_name="model", dataset_dir=[str(ids)], check_data=False)


def test_a_trainer_evaluates_no_damaged_ids(ids, make_trainer):
    trainer = make_trainer(config={"vocab_size": 60})
    trainer.val_data = TokenDataset(ids, split="val", seq_len=16)
    assert trainer.evaluate()["val"].num_tokens > 0
    flip(ids)
    with pytest.raises(DataError, match="is damaged"):
        trainer.evaluate()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"data": "x.npy"}, "data is of type str"),
        ({"data": [1, 2, 3]}, "data is of type list"),
        ({"data": None}, "data is of type NoneType"),
        ({"val_data": "x.npy"}, "val_data is of type str"),
        ({"eval_data": {"general": "x.npy"}}, "general is of type str"),
    ],
)
def test_what_is_no_data_is_refused_at_once(make_trainer, given, named):
    trainer = make_trainer()
    options = {"data": trainer.data, **given}
    with pytest.raises(UsageError, match=named) as caught:
        Trainer(trainer.model, **options, max_iters=1)
    assert "TokenDataset(" in str(caught.value.next_step)
