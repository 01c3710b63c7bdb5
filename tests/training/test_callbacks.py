"""Callbacks are called after what they are named for, and can end a run."""

from __future__ import annotations

import torch

from lowtide.training.checkpoints import RunFolder


def test_each_is_called_with_what_happened(make_trainer):
    steps, evaluations, checkpoints = [], [], []

    def keep(event):
        assert (event.path / "model.safetensors").is_file()
        checkpoints.append((event.step, event.path.name))

    trainer = make_trainer(
        max_iters=4,
        eval_interval=2,
        save_interval=3,
        save_in_background=True,
        on_step=lambda event: steps.append((event.step, float(event.loss), event.learning_rate)),
        on_evaluation=evaluations.append,
        on_checkpoint=keep,
    )
    result = trainer.fit()
    assert [step for step, *_ in steps] == [1, 2, 3, 4]
    assert all(0 < loss < 10 and rate > 0 for _, loss, rate in steps)
    assert [event.step for event in evaluations] == [0, 2, 4]
    assert evaluations[-1].results["val"].loss == result.val_loss
    assert checkpoints == [(3, "step_00000003"), (4, "step_00000004")]
    assert result.stopped == "finished"


def test_an_evaluation_can_end_the_run_and_the_run_goes_on_later(make_trainer):
    ended = make_trainer(max_iters=6, eval_interval=2, on_evaluation=lambda e: e.step == 2).fit()
    assert (ended.steps, ended.stopped) == (2, "callback")
    again = make_trainer(max_iters=6, eval_interval=2, resume=True)
    assert RunFolder(again.run.root).exists()
    whole = make_trainer("whole", max_iters=6, eval_interval=2)
    assert again.fit().stopped == whole.fit().stopped == "finished"
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
