"""Tokens per second of training on a CPU: lowtide and a plain nanoGPT-style loop, alternately.

Both train shapes of the same depth and width on the same ids, with clipping and no compilation;
ours through the whole loop (loader, guards, counters), in both layouts and with both optimizers,
the plain one as GPT-2 with AdamW, random crops, full logits and the ordinary cross entropy. Rounds
alternate in one process, so other work affects all; compare processor time on a busy machine.

    python benchmarks/train_cpu.py --rounds 5 --steps 20
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.distributed import open_process_group
from lowtide.training.trainer import Trainer
from plain_gpt import PlainGPT

SHAPES = {
    "char (4 x 128, context 64, batch 12)": (GPTConfig(65, 64, 4, 128, 4, layout="gpt2"), 12),
    "bpe (6 x 192, context 128, vocabulary 8192, batch 8)": (
        GPTConfig(8192, 128, 6, 192, 6, layout="gpt2"),
        8,
    ),
}


class PlainLoop:
    """Random crops, forward, backward, clip, AdamW, and the loss on every tenth step."""

    def __init__(
        self,
        config: GPTConfig,
        batch: int,
        path: Path,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        torch.manual_seed(0)
        self.model = PlainGPT(config, bias=True)
        flat = [p for p in self.model.parameters() if p.ndim < 2]
        deep = [p for p in self.model.parameters() if p.ndim >= 2]
        groups = [{"params": deep, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=betas)
        self.path, self.batch, self.length = path, batch, config.context_length

    def run(self, steps: int) -> None:
        for step in range(steps):
            data = np.load(self.path, mmap_mode="r")
            starts = torch.randint(len(data) - self.length, (self.batch,)).tolist()
            ids = torch.stack(
                [torch.from_numpy(data[s : s + self.length].astype(np.int64)) for s in starts]
            )
            targets = torch.stack(
                [
                    torch.from_numpy(data[s + 1 : s + 1 + self.length].astype(np.int64))
                    for s in starts
                ]
            )
            loss = self.model(ids, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                loss.item()


class OurLoop:
    """The trainer's own step, as `fit` calls it."""

    def __init__(self, config: GPTConfig, batch: int, path: Path, optimizer: str) -> None:
        torch.manual_seed(0)
        trainer = Trainer(
            GPT(config),
            data=TokenDataset(path, split="all", seq_len=config.context_length),
            batch_size=batch,
            optimizer=optimizer,
            max_iters=10**6,
            learning_rate=1e-3,
            order="random",
            device="cpu",
            checkpoints_dir=path.parent,
        )
        with open_process_group("cpu") as group:
            self.ready = trainer.prepare(group)

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.ready.train_step()
            if step % 10 == 0:
                self.ready.counters.loss.item()


def main() -> None:
    """Print a table of medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, (config, batch) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ids.npy"
            ids = np.random.default_rng(0).integers(config.vocab_size, size=400_000)
            np.save(path, ids.astype(np.uint16))
            loops = {
                "plain loop, AdamW": PlainLoop(config, batch, path),
                **{
                    f"lowtide, {layout}, {optimizer}": OurLoop(
                        config.replace(layout=layout, mlp_width=0), batch, path, optimizer
                    )
                    for layout in ("gpt2", "qwen3")
                    for optimizer in ("adamw", "muon")
                },
            }
            walls: dict[str, list[float]] = {label: [] for label in loops}
            processors: dict[str, list[float]] = {label: [] for label in loops}
            for loop in loops.values():
                loop.run(3)
            for _ in range(options.rounds):
                for label, loop in loops.items():
                    start, busy = time.perf_counter(), time.process_time()
                    loop.run(options.steps)
                    walls[label].append(time.perf_counter() - start)
                    processors[label].append(time.process_time() - busy)
            print(name)
            tokens = options.steps * batch * config.context_length
            for label in loops:
                wall, busy = statistics.median(walls[label]), statistics.median(processors[label])
                times = statistics.median(walls["plain loop, AdamW"]) / wall
                sparing = statistics.median(processors["plain loop, AdamW"]) / busy
                print(
                    f"  {label:<24} {tokens / wall:>9,.0f} tokens/s   {times:.2f}x by the clock   "
                    f"{sparing:.2f}x by processor time"
                )
            for loop in loops.values():
                if isinstance(loop, OurLoop):
                    loop.ready.feed.close()


if __name__ == "__main__":
    main()
