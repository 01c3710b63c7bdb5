"""One of two processes that train together: `python together.py FOLDER NUMBER ADDRESS [die]`.

With `die` it dies in the middle of a run, as by kill -9. Without, it goes on with that run, and
trains one that nobody disturbs, and one with divided weights.
"""

import os
import signal
import sys
from pathlib import Path

folder, number, address = sys.argv[1:4]
os.environ["JAX_COORDINATOR_ADDRESS"] = address
os.environ["JAX_NUM_PROCESSES"], os.environ["JAX_PROCESS_ID"] = "2", number

import runs  # noqa: E402
from cases import PAIR  # noqa: E402

from lowtide.training.steps import Steps  # noqa: E402

step = Steps.train_step


def die_at_three(self):
    loss = step(self)
    if self.state.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss


def fit(name, **options):
    return runs.make_trainer(Path(folder), name, **{**PAIR, "device": "cpu", **options}).fit()


if "die" in sys.argv:
    Steps.train_step = die_at_three
result = fit("pair")
fit("pair-whole")
fit("pair-divided", parallel="fsdp", max_iters=4)
print(result.loss, result.val_loss)
