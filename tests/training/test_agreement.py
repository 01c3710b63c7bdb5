"""Processes that were given different things say so, all of them, before they train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.settings import settings_as_json
from lowtide.training import agreement
from lowtide.training.agreement import (
    require_same_checkpoint,
    require_same_data,
    require_same_settings,
)
from lowtide.training.distributed import ProcessGroup
from lowtide.training.resuming import RESUME_RULES
from lowtide.training.settings import TrainSettings, train_settings
from lowtide.training.trainer import Trainer


class Pair:
    """This process and another one that has the other things, whichever of them is the first."""

    world_size = 2

    def __init__(self, others, *, rank):
        self.others, self.rank, self.is_first = iter(others), rank, rank == 0

    def all_say(self, value):
        said = [value, next(self.others)]
        return said if self.is_first else said[::-1]


class Nobody:
    world_size = 1


def said_of(**options):
    said = settings_as_json(train_settings(**options))
    return {name: value for name, value in said.items() if name not in agreement._MAY_DIFFER}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("learning_rate", 0.001, 0.01),
        ("batch_size", 8, 4),
        ("max_iters", 100, 50),
        ("eval_interval", 10, 20),
        ("parallel", "ddp", "fsdp"),
        ("overwrite", False, True),
        ("activation_checkpointing", False, True),
        ("model_name", "mine", "other"),
    ],
)
def test_another_setting_is_named_with_both_values_in_every_process(name, here, there, rank):
    other = said_of(**{name: there})
    with pytest.raises(UsageError) as caught:
        require_same_settings(Pair([other], rank=rank), train_settings(**{name: here}))
    values = (here, there) if rank == 0 else (there, here)
    flag = "--" + name.replace("_", "-")
    assert (
        caught.value.message == f"{flag} is {values[0]} in process 0 and {values[1]} in process 1"
    )
    assert caught.value.next_step == "give the same command to all processes"


def test_what_each_machine_has_of_its_own_may_differ():
    own = {"memory": "1GiB", "num_workers": 3, "cache_dir": "/here", "device": "cpu"}
    own |= {"dataset_dir": "/here/data", "checkpoints_dir": "/here/runs"}
    require_same_settings(Pair([said_of()], rank=0), train_settings(**own))
    assert setting_fields(TrainSettings).keys() > agreement._MAY_DIFFER
    paths = {"val_data_path", "eval_dataset_dir", "replay_dataset_dir"}
    assert {n for n in agreement._MAY_DIFFER if RESUME_RULES[n] != "free"} == paths


@pytest.mark.parametrize("rank", [0, 1])
def test_other_data_is_refused_wherever_it_lies(rank):
    mine, held_out = SimpleNamespace(fingerprint="a" * 32), SimpleNamespace(fingerprint="b" * 32)
    loader = SimpleNamespace(dataset=mine)
    require_same_data(Pair([{"data": "a" * 12}], rank=rank), {"data": loader})
    require_same_data(Pair([{"data": "given"}], rank=rank), {"data": iter(())})
    with pytest.raises(UsageError, match=r"data is (a{12}|c{12}) in process 0 and (a|c){12} in"):
        require_same_data(Pair([{"data": "c" * 12}], rank=rank), {"data": mine})
    with pytest.raises(UsageError, match=r"val is .*not there"):
        require_same_data(Pair([{"data": "a" * 12}], rank=rank), {"data": mine, "val": held_out})


@pytest.mark.parametrize(
    ("rank", "here", "there", "said"),
    [
        (0, "step_00000004", None, "it finds no checkpoint there, process 0 step_00000004"),
        (1, None, "step_00000004", "it finds no checkpoint there, process 0 step_00000004"),
        (1, "step_00000002", None, "it finds step_00000002 there, process 0 none"),
    ],
)
def test_a_folder_that_one_process_does_not_see_is_refused(rank, here, there, said):
    newest = None if here is None else Path("runs/mine/steps") / here
    pair = Pair([{"newest": there}], rank=rank)
    with pytest.raises(UsageError) as caught:
        require_same_checkpoint(pair, Path("runs/mine"), newest)
    assert caught.value.message.startswith("process 1 does not see the run's folder as process 0")
    assert caught.value.message.endswith(said)
    assert "a folder that all processes share" in caught.value.next_step
    require_same_checkpoint(Pair([{"newest": here}], rank=rank), Path("runs/mine"), newest)


def test_one_process_asks_nobody():
    require_same_settings(Nobody(), train_settings())
    require_same_data(Nobody(), {"data": None})
    require_same_checkpoint(Nobody(), Path("runs/mine"), None)


def test_a_trainer_asks_before_it_removes_anything(token_file, tmp_path, monkeypatch):
    def trainer(**options):
        data = TokenDataset(token_file, split="train", seq_len=16)
        return Trainer(
            GPT(GPTConfig(37, 16, 1, 8, 1)), data=data, checkpoints_dir=tmp_path, model_name="m",
            batch_size=2, max_iters=1, device="cpu", **options,
        )  # fmt: skip

    trainer().fit()
    group = ProcessGroup(0, 2, torch.device("cpu"))
    new = trainer(overwrite=True)
    own = settings_as_json(new.settings)
    monkeypatch.setattr(ProcessGroup, "wait", lambda self: None)
    monkeypatch.setattr(ProcessGroup, "all_say", lambda self, value: [value, {**own, "seed": 5}])
    with pytest.raises(UsageError, match="--seed is 1337 in process 0 and 5 in process 1"):
        new._claim(group)
    monkeypatch.setattr(
        ProcessGroup, "all_say", lambda self, v: [v, {"newest": None} if "newest" in v else v]
    )
    with pytest.raises(UsageError, match="finds no checkpoint there, process 0 step_00000001"):
        trainer()._claim(group)
