"""A small learnable stream of ids, and a trainer small enough to run tens of steps in a test."""

import numpy as np
import pytest
import torch

from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.trainer import Trainer

VOCAB = 37


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def write_tokens(path, *, seed=0, count=6000, step=7):
    """Write ids that mostly follow a rule, so that a model can learn them."""
    random = np.random.default_rng(seed)
    ids = (np.arange(count) * step) % VOCAB
    noise = random.random(count) < 0.1
    ids[noise] = random.integers(VOCAB, size=int(noise.sum()))
    np.save(path, ids.astype(np.uint16))
    return path


def kept_steps(trainer):
    """Keep what `fit` goes through from step to step, to look at when it is over."""
    made, prepare = [], trainer.prepare

    def keep(*given):
        made.append(prepare(*given))
        return made[-1]

    trainer.prepare = keep
    return made


@pytest.fixture
def token_file(tmp_path):
    return write_tokens(tmp_path / "tokens.npy")


@pytest.fixture
def make_trainer(token_file, tmp_path):
    """Return a function that makes a trainer; options are settings, `config` changes the shape.

    An optimizer may be a function of the model.
    """

    def make(name="run", *, config=None, eval_files=None, **options):
        fields = {
            "vocab_size": VOCAB,
            "context_length": 16,
            "num_layers": 2,
            "width": 32,
            "num_heads": 2,
        }
        torch.manual_seed(11)
        model = GPT(GPTConfig(**{**fields, **(config or {})}))
        if callable(options.get("optimizer")):
            options["optimizer"] = options["optimizer"](model)
        options = {
            "batch_size": 4,
            "max_iters": 12,
            "save_interval": 4,
            "eval_interval": 6,
            "eval_iters": 2,
            "log_interval": 1,
            "learning_rate": 3e-3,
            "device": "cpu",
            **options,
        }
        return Trainer(
            model,
            data=TokenDataset(token_file, split="train", seq_len=16),
            val_data=TokenDataset(token_file, split="val", seq_len=16),
            eval_data={
                key: TokenDataset(path, split="val", seq_len=16)
                for key, path in (eval_files or {}).items()
            },
            model_name=name,
            checkpoints_dir=tmp_path / "checkpoints",
            **options,
        )

    return make
