"""Compiled networks learn the same; without a compiler the run is refused before it starts."""

import shutil

import pytest
import torch

from lowtide.errors import UsageError


# torch.compile warns of its own doings.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_a_compiled_network_learns_the_same(make_trainer):
    options = {"max_iters": 3, "eval_interval": 3, "config": {"num_layers": 1}}
    plain = make_trainer("plain", **options)
    plain.fit()
    compiled = make_trainer("compiled", compile=True, **options)
    try:
        compiled.fit()
    finally:
        torch.compiler.reset()
    for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_without_a_compiler_the_error_says_what_to_do(make_trainer, monkeypatch):
    def fail():
        raise RuntimeError("no working compiler")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", fail)
    with pytest.raises(UsageError, match=r"--compile needs a C\+\+ compiler") as caught:
        make_trainer(compile=True).fit()
    assert "leave --compile out" in caught.value.next_step
