"""Runs that are stopped and go on, beside the same run that is not."""

import pytest
import torch
from safetensors.torch import load_file


class _StoppedError(Exception):
    pass


def run_files(trainer):
    """The tensors of a run's newest checkpoint: its weights, and its training state."""
    folder = trainer.run.newest_dir()
    return load_file(folder / "model.safetensors"), load_file(folder / "state.safetensors")


def fit_whole_and_in_parts(make_trainer, options, *, stop_at=11):
    """Train a run, and one that is stopped and goes on: to the same bits; return the first."""

    def stop(event):
        if event.step == stop_at:
            raise _StoppedError

    whole = make_trainer("whole", **options)
    whole.fit()
    with pytest.raises(_StoppedError):
        make_trainer("parts", **options, on_step=stop).fit()
    parts = make_trainer("parts", **options)
    parts.fit()
    for one, other in zip(run_files(whole), run_files(parts), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    return whole
