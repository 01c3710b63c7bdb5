"""AdamW is torch's own to the last bit, and runs without torch's compiler."""

import subprocess
import sys

import pytest
import torch

from lowtide.training.adamw import AdamW

# One process does what a user would do with several commands; each would import as much.
COMMANDS = """
import sys
from pathlib import Path
from lowtide import cli

Path("a.txt").write_text("some words of a text that is not long\\n" * 200)
train = ["train", "--input-file", "a.txt", "--tokenization", "char", "--model-name", "one",
         "--num-layers", "1", "--width", "16", "--num-heads", "1", "--seq-len", "16",
         "--batch-size", "2", "--eval-iters", "1", "--sample-tokens", "2", "--memory", "2GiB"]
commands = [
    [*train, "--max-iters", "2"],
    [*train, "--max-iters", "3"],
    ["pretokenize", "a.txt", "--tokenization", "char"],
    ["evaluate", "--model-name", "one", "--dataset-dir", "a.npy"],
    ["generate", "--model-name", "one", "--prompt", "some", "--max-new-tokens", "2"],
    ["train", "--train-data-path", "a.npy", "--model-name", "two", "--init-from-model", "one",
     "--max-iters", "1", "--eval-iters", "1", "--optimizer", "adamw", "--memory", "2GiB"],
]
for command in commands:
    assert cli.main(command) == 0, command
    heavy = {"torch._dynamo", "torch.distributed.tensor", "sympy"} & set(sys.modules)
    assert not heavy, (command, heavy)
"""


def parameters(number):
    torch.manual_seed(number)
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 4), (8,), (3, 5))]
    for parameter in made[:2]:
        parameter.grad = torch.randn(parameter.shape)
    return made


@pytest.mark.parametrize("skipped", [None, 2])
def test_steps_are_torchs(skipped):
    ours, theirs = parameters(0), parameters(0)
    options = {"lr": 0.01, "betas": (0.8, 0.95)}

    def groups(made):
        return [{"params": made[1:], "weight_decay": 0.1}, {"params": made[:1], "lr": 0.1}]

    one = AdamW(groups(ours), **options)
    other = torch.optim.AdamW(groups(theirs), **options, eps=1e-8, fused=True)
    for number in range(4):
        for optimizer in (one, other):
            optimizer.grad_scale = torch.tensor(2.0)
            optimizer.found_inf = torch.tensor(float(number == skipped))
            optimizer.step()
    for mine, known in zip(ours, theirs, strict=True):
        assert torch.equal(mine, known)
        assert one.state[mine].keys() == other.state[known].keys()
        for key, value in one.state[mine].items():
            assert torch.equal(value, other.state[known][key])
    assert not one.state[ours[2]]  # it had no gradient
    assert one.param_groups[0]["weight_decay"] == 0.1
    assert one.param_groups[1]["lr"] == 0.1


def test_a_state_of_torchs_goes_on_here():
    ours, theirs = parameters(1), parameters(1)
    other = torch.optim.AdamW([{"params": theirs}], lr=0.01, betas=(0.9, 0.95), fused=True)
    other.step()
    with torch.no_grad():
        for mine, known in zip(ours, theirs, strict=True):
            mine.copy_(known)
    one = AdamW([{"params": ours}], lr=0.01, betas=(0.9, 0.95))
    one.load_state_dict(other.state_dict())
    for optimizer in (one, other):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_commands_that_compile_nothing_do_without_the_compiler(tmp_path):
    """It takes 140 MiB and a second and a half, of every budget and every start."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
