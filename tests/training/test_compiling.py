"""Compiled networks learn the same; without a compiler the run is refused before it starts."""

import shutil

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.compiling import compile_network
from lowtide.training.distributed import ProcessGroup


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


@pytest.fixture
def model():
    shape = {"vocab_size": 16, "context_length": 8, "num_layers": 1, "width": 16, "num_heads": 1}
    return GPT(GPTConfig(**shape))


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: "g++")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("whole", [False, True])
def test_one_process_compiles_the_blocks_and_calls_the_same_network(model, monkeypatch, whole):
    asked = []
    monkeypatch.setattr(model, "compile_blocks", lambda *, whole: asked.append(whole))
    group = ProcessGroup(0, 1, torch.device("cpu"))
    assert compile_network(model, model, group, whole=whole) is model
    assert asked == [whole]


@pytest.mark.usefixtures("compiler")
def test_several_processes_compile_what_is_wrapped_around_the_model(model, monkeypatch):
    monkeypatch.setattr(model, "compile_blocks", lambda **given: pytest.fail("blocks too"))
    wrapped = torch.nn.Sequential(model)
    called = compile_network(model, wrapped, ProcessGroup(1, 2, torch.device("cpu")), whole=False)
    assert called is not wrapped
    assert called._orig_mod is wrapped


def test_on_a_gpu_no_compiler_is_asked_for(model, monkeypatch):
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: pytest.fail("no"))
    monkeypatch.setattr(model, "compile_blocks", lambda **given: None)
    group = ProcessGroup(0, 1, torch.device("cuda"))
    assert compile_network(model, model, group, whole=False) is model


def test_without_a_compiler_the_error_says_what_to_do(make_trainer, monkeypatch):
    def fail():
        raise RuntimeError("no working compiler")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", fail)
    with pytest.raises(UsageError, match=r"--compile needs a C\+\+ compiler") as caught:
        make_trainer(compile=True).fit()
    assert "leave --compile out" in caught.value.next_step
