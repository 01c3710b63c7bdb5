"""The network: shapes, causality, the chunked loss, the cache, activation checkpointing."""

import pytest
import torch
import torch.nn.functional as F

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT, KVCache, chunked_cross_entropy

LAYOUTS = ["qwen3", "gpt2"]


def tiny(layout="qwen3", **changes):
    fields = {"vocab_size": 61, "context_length": 24, "num_layers": 2, "width": 32, "num_heads": 4}
    return GPTConfig(layout=layout, **{**fields, **changes})


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def ids(rows=3, tokens=24, vocab=61):
    return torch.randint(vocab, (rows, tokens))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_later_tokens_do_not_change_earlier_logits(layout):
    model = GPT(tiny(layout)).eval()
    first = ids()
    second = first.clone()
    second[:, 12:] = (second[:, 12:] + 1) % 61
    torch.testing.assert_close(model(first)[:, :12], model(second)[:, :12])
    assert not torch.allclose(model(first)[:, 12:], model(second)[:, 12:])


@pytest.mark.parametrize("chunk_tokens", [1, 7, 72, 1000])
def test_chunked_loss_and_gradients_equal_the_plain_ones(chunk_tokens):
    hidden = torch.randn(72, 16, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(61, 16).requires_grad_()
    targets = torch.randint(61, (72,))
    plain = F.cross_entropy(hidden @ weight.t(), targets)
    expected = torch.autograd.grad(plain * 3, [hidden, weight])
    loss = chunked_cross_entropy(hidden, weight, targets, chunk_tokens)
    found = torch.autograd.grad(loss * 3, [hidden, weight])
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)


def test_chunked_loss_never_holds_all_logits():
    hidden = torch.randn(4096, 8, requires_grad=True)
    weight = torch.randn(2000, 8, requires_grad=True)
    targets = torch.randint(2000, (4096,))
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(profile_memory=True, activities=cpu) as profile:
        chunked_cross_entropy(hidden, weight, targets, 64).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 4096 * 2000 * 4 / 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_equals_cross_entropy_of_the_logits(layout):
    model = GPT(tiny(layout))
    inputs, targets = ids(), ids()
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(inputs, targets), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_computes_in_that_precision(dtype):
    model = GPT(tiny())
    inputs, targets = ids(), ids()
    seen = []
    model.blocks[0].mlp.down.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    with torch.autocast("cpu", dtype):
        loss = model(inputs, targets)
    loss.backward()
    assert seen == [dtype]
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(inputs, targets), rtol=0.02, atol=0.02)
    assert model.embedding.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_cache_gives_the_same_logits_token_by_token(layout, kv_heads):
    if layout == "gpt2" and kv_heads != 4:
        pytest.skip("gpt2 has no grouped heads")
    model = GPT(tiny(layout, num_kv_heads=kv_heads)).eval()
    prompt = ids(rows=2)
    cache = KVCache(model.config, 2, "cpu", torch.float32)
    with torch.inference_mode():
        whole = model(prompt)
        torch.testing.assert_close(model.next_logits(prompt[:, :5], cache), whole[:, 4])
        torch.testing.assert_close(model.next_logits(prompt[:, 5:9], cache), whole[:, 8])
        for position in range(9, 24):
            found = model.next_logits(prompt[:, position : position + 1], cache)
            torch.testing.assert_close(found, whole[:, position])


def test_activation_checkpointing_keeps_gradients():
    model = GPT(tiny(dropout=0.1))
    inputs, targets = ids(), ids()
    gradients = []
    for wanted in (False, True):
        model.activation_checkpointing = wanted
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(model(inputs, targets), list(model.parameters())))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_row_longer_than_the_context_is_refused():
    with pytest.raises(UsageError, match="25 tokens do not fit a context of 24"):
        GPT(tiny())(ids(tokens=25))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_is_one_graph_for_the_compiler(layout):
    model = GPT(tiny(layout))
    inputs, targets = ids(), ids()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
    found = torch.autograd.grad(compiled(inputs, targets), list(model.parameters()))
    torch.testing.assert_close(found, expected)
