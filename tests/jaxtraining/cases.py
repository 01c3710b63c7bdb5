"""Shapes, data and settings that both backends compute with; neither is imported here."""

import dataclasses

import numpy as np

from lowtide.errors import UsageError
from lowtide.generation.generating import generate
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES
from lowtide.training import settings
from lowtide.training.evaluating import evaluate

VOCAB, TOKENS, ROWS = 61, 24, 8
SHAPES = {
    "qwen3": GPTConfig(VOCAB, TOKENS, 4, 32, 4, num_kv_heads=2),
    "gpt2": GPTConfig(VOCAB, TOKENS, 2, 32, 4, layout="gpt2", norm_eps=1e-5),
}
FAMILY_SHAPES = {
    name: GPTConfig(
        VOCAB,
        TOKENS,
        2,
        32,
        4,
        num_kv_heads=4 if family.plain_heads else 2,
        layout=name,
        attention_bias=family.qkv_bias is None,
        mlp_bias=family.mlp_bias is None,
        sliding_window=5 if family.windows != "none" else 0,
        window_layers={"none": (), "some": (1,), "all": (0, 1)}[family.windows],
        tie_weights=family.plain_heads,
    )
    for name, family in FAMILIES.items()
    if not family.rereads_embedding
}
"""A small model of every family, with all that it may have."""
RATES = {"adamw": 1e-3, "muon": 2e-3}
MORE = {
    "gpt2-adamw": {"embedding_rate": 2.0, "embedding_decay": 0.01, "grad_clip": 0.5},
    "qwen3-muon": {"target_params": 1_000_000},  # embeddings learn at a rate of their own
    "gpt2-muon": {"cautious_decay": True, "embedding_rate": 2.0, "momentum_warmup": 10},
}
"""Options that some of the compared runs have besides."""
STEPS = {"qwen3-adamw": 100, "qwen3-muon": 40, "gpt2-adamw": 40, "gpt2-muon": 100}
"""Steps of the compared runs: each layout and each optimizer once for a hundred."""


PAIR = {"max_iters": 6, "save_interval": 2, "eval_interval": 2, "optimizer": "adamw"}
"""Options of runs that two processes train together, beside one."""


def batches(count):
    """Ids that mostly follow a rule."""
    dice = np.random.default_rng(3)
    for _ in range(count):
        starts = dice.integers(0, VOCAB, (ROWS, 1))
        ids = (starts + 7 * np.arange(TOKENS + 1)) % VOCAB
        noise = dice.random(ids.shape) < 0.1
        ids[noise] = dice.integers(VOCAB, size=int(noise.sum()))
        yield ids[:, :-1], ids[:, 1:]


def train_settings(**options):
    return settings.train_settings(seq_len=TOKENS, batch_size=ROWS, device="cpu", **options)


def losses_of(engine, given, steps):
    """Train, with a warm-up of five steps; return the losses."""
    losses = []
    for number, (inputs, targets) in enumerate(batches(steps)):
        loss = engine.compute(given(inputs), given(targets))
        engine.update(loss, min(1.0, (number + 1) / 5))
        losses.append(float(loss))
        engine.state.step += 1
    return losses


def trainer_options(folder, name, *, max_iters, device="cpu:0", **options):
    """Options of a Trainer on a file of ids."""
    path = folder / "ids.npy"
    if not path.exists():
        ids = (7 * np.arange(6000)) % VOCAB
        dice = np.random.default_rng(0)
        noise = dice.random(ids.size) < 0.1
        ids[noise] = dice.integers(VOCAB, size=int(noise.sum()))
        np.save(path, ids.astype(np.uint16))
    return {
        "data": TokenDataset(path, split="train", seq_len=TOKENS),
        "val_data": TokenDataset(path, split="val", seq_len=TOKENS),
        "model_name": name,
        "checkpoints_dir": folder,
        "batch_size": ROWS,
        "max_iters": max_iters,
        "schedule": "constant",
        "warmup": 2,
        "save_interval": 4,
        "eval_interval": 4,
        "eval_iters": 1,
        "log_interval": 1,
        "device": device,
        "resume": True,
        "memory": "1TiB",
        "optimizer": "muon",
        "learning_rate": 2e-3,
        **options,
    }


def speak(folder, backend):
    """What the commands say of the network that has a vocabulary: texts, losses, answers."""
    speaker = folder / "speaker"
    options = {"model_name": str(speaker), "backend": backend, "device": "cpu", "memory": "64GiB"}
    text = "".join(
        generate(
            **options,
            prompt_file=speaker / "prompts.txt",
            each_line=True,
            preset="deterministic",
            num_samples=2,
            max_new_tokens=60,
            stop=("jj",),
        )
    )
    try:
        evaluate(**options, dataset_dir=(str(speaker / "ids.npy"),), split="all", seq_len=41)
    except UsageError as error:
        text += str(error)
    found = evaluate(
        **options,
        dataset_dir=(f"ids={speaker / 'ids.npy'}",),
        split="all",
        tasks=(str(speaker / "questions.jsonl"), str(speaker / "last.jsonl")),
        batch_size=3,
        seq_len=32,
    )
    return {"text": text, **{name: dataclasses.asdict(row) for name, row in found.items()}}
