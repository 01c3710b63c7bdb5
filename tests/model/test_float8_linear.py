"""Linear layers after norms in 8-bit floats: near the plain result, gradients as without them."""

import pytest
import torch
import torch.nn.functional as F

from lowtide.model.config import GPTConfig
from lowtide.model.float8_linear import normed_linear
from lowtide.model.gpt import GPT


@pytest.mark.parametrize("with_bias", [False, True])
def test_results_are_near_and_gradients_those_of_a_plain_layer(with_bias):
    torch.manual_seed(0)
    x = F.rms_norm(torch.randn(2, 16, 64), (64,)).requires_grad_()
    weight = torch.randn(48, 64).mul(0.02).requires_grad_()
    bias = torch.randn(48).requires_grad_() if with_bias else None
    wanted = [x, weight, *([bias] if bias is not None else [])]
    plain, near = F.linear(x, weight, bias), normed_linear(x, weight, bias)
    off = float(((near - plain).norm() / plain.norm()).detach())
    assert 0.001 < off < 0.05  # three bits each
    given = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, wanted, given)
    for one, other in zip(torch.autograd.grad(near, wanted, given), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_beyond_the_scale_saturate_and_broken_ones_stay_broken():
    weight = torch.eye(16)
    x = torch.ones(16, 16)
    x[0, 0], x[1, 1] = 1e6, torch.nan
    found = normed_linear(x, weight)
    assert float(found[0, 0]) == pytest.approx(56.0)  # the largest e4m3 over the scale
    assert torch.isnan(found[1]).all()
    torch.testing.assert_close(found[2:], x[2:])


@pytest.mark.parametrize("layout", ["qwen3", "gpt2", "tide"])
def test_a_network_uses_them_in_training_only(layout):
    torch.manual_seed(0)
    model = GPT(GPTConfig(96, 16, 2, 32, 2, layout=layout))
    ids = torch.randint(96, (2, 16))
    plain = model(ids)
    model.use_float8(head=False, blocks=True)
    near = model(ids)
    assert not torch.equal(near, plain)
    assert float(((near - plain).norm() / plain.norm()).detach()) < 0.05
    assert torch.equal(model.eval()(ids), plain)
    assert torch.equal(model.train()(ids[:1, :7]), _without(model, ids[:1, :7]))  # 7 rows: not 16


def _without(model, ids):
    model.use_float8(head=False, blocks=False)
    return model(ids)


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
def test_compiled_with_checkpointing_nothing_of_a_block_is_kept():
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    model = GPT(GPTConfig(96, 16, 1, 32, 2))
    model.use_float8(head=False, blocks=True)
    model.activation_checkpointing = True
    kept = []

    def forward_graph(graph, _examples):
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        kept.extend(node for node in output.args[0][1:] if node.op == "call_function")
        return graph

    backend = aot_autograd(
        fw_compiler=forward_graph,
        bw_compiler=lambda graph, _examples: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
    model.compile_blocks(backend=backend)
    model.compiled_call = None  # of the last norm, which is no block
    ids = torch.randint(96, (2, 16))
    model(ids, ids).backward()
    assert [node for node in kept if node.meta["val"].ndim > 1] == []
