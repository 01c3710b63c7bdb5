"""Begin a run and die in the middle of it, as by kill -9: `python killed.py FOLDER`."""

import os
import signal
import sys
from pathlib import Path

import runs

from lowtide.training.steps import Steps

trainer = runs.make_trainer(Path(sys.argv[1]), "killed", max_iters=12)
step = Steps.train_step


def die_at_seven(self):
    step(self)
    if self.state.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)


Steps.train_step = die_at_seven
trainer.fit()
