"""The same runs with torch, in the process of the tests."""

import torch

from lowtide.model.firstweights import iter_first_weights
from lowtide.model.gpt import GPT
from lowtide.training.state import RunState
from lowtide.training.torchbackend import BACKEND as TORCH
from lowtide.training.trainer import Trainer

from .cases import RATES, ROWS, SHAPES, losses_of, train_settings, trainer_options

SEED = 1337  # that of JaxGPT, if none is given


def new_model(layout):
    torch.manual_seed(SEED)
    return GPT(SHAPES[layout])


def make_engine(layout="qwen3", *, exact_start=False, **options):
    """An engine; with `exact_start` from JAX's very weights, a rounding away from torch's own."""
    options = {"optimizer": "adamw", "learning_rate": RATES["adamw"], **options}
    model = new_model(layout)
    if exact_start:
        weights = iter_first_weights(SHAPES[layout], SEED)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in weights})
    with TORCH.open_group("cpu") as group:
        return TORCH.make_engine(
            model,
            train_settings(**options),
            RunState(micro_batch=ROWS),
            group,
            rows=ROWS,
            given=None,
            note=print,
        )


def run(steps, layout="qwen3", **options):
    return losses_of(make_engine(layout, **options), torch.from_numpy, steps)


def make_trainer(folder, name, *, layout="qwen3", **options):
    return Trainer(new_model(layout), **trainer_options(folder, name, device="cpu", **options))


def begin_runs(folder):
    """Begin what JAX goes on with, and run what it is compared with."""
    make_trainer(folder, "alone", max_iters=12).fit()
    make_trainer(folder, "torch", max_iters=6).fit()
    eight = {"optimizer": "auto", "use_8bit_optimizer": True}
    make_trainer(folder, "alone8", max_iters=12, **eight).fit()
    make_trainer(folder, "torch8", max_iters=6, **eight).fit()
