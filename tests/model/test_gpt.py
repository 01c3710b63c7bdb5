"""The network: shapes, causality, the cache, activation checkpointing."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from lowtide import _native
from lowtide.errors import UsageError
from lowtide.model.blocks import KVCache, RMSNorm, rotate
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT, rotary_tables

LAYOUTS = ["qwen3", "gpt2", "tide"]


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_equals_cross_entropy_of_the_logits(layout):
    model = GPT(tiny(layout))
    inputs, targets = ids(), ids()
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(inputs, targets), plain)


@pytest.mark.parametrize("past", [0, 3, 600])
def test_windows_of_long_rows_go_part_by_part(past):
    """As many parts as the queries take; each sees its own window, whatever came before."""
    config = tiny("qwen3", sliding_window=7, window_layers=(0,), num_kv_heads=2, head_dim=8)
    attention = GPT(config).blocks[0].attention.eval()
    tokens = 1030
    query = torch.randn(2, 4, tokens, 8)
    key, value = torch.randn(2, 2, 2, past + tokens, 8).unbind()
    found = attention._attend_in_window(query, key, value, past)
    places = torch.arange(past + tokens)
    own = places[past:, None]
    mask = (places <= own) & (places > own - 7)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, wanted)


class AsOnGpu(torch.Tensor):
    """Is computed here, by the ways that are for GPUs."""

    is_cuda = True


@pytest.mark.parametrize("part", ["mlp", "rotate"])
def test_the_ways_of_a_gpu_compute_the_same(part):
    config = tiny(head_dim=8)
    if part == "mlp":
        mlp = GPT(config).blocks[0].mlp
        x = torch.randn(2, 5, 32)
        found, wanted = mlp(x.as_subclass(AsOnGpu)), mlp(x)
    else:
        cos, sin = (table[:5] for table in rotary_tables(config, 8))
        x = torch.randn(2, 4, 5, 8)
        found, wanted = rotate(x.as_subclass(AsOnGpu), cos, sin), rotate(x, cos, sin)
    assert wanted.abs().max() > 0
    torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted)


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


@pytest.mark.parametrize(("layout", "kv_heads"), [*((name, 4) for name in LAYOUTS), ("qwen3", 2)])
def test_cache_gives_the_same_logits_token_by_token(layout, kv_heads):
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


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the same
@pytest.mark.parametrize("whole", [False, True])
def test_activation_checkpointing_is_part_of_what_is_compiled(whole):
    from torch._dynamo.testing import CompileCounterWithBackend

    model = GPT(tiny(num_layers=2))
    inputs, targets = ids(), ids()
    expected = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
    counter = CompileCounterWithBackend("aot_eager")
    model.activation_checkpointing = True
    model.compile_blocks(whole=whole, backend=counter)
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs, targets)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), expected)
    assert counter.frame_count == (1 if whole else 2)  # a block for all, the last norm
    inner = 3 * 24 * tiny().mlp_width
    assert all(tensor.numel() < inner for tensor in kept)


def test_a_row_longer_than_the_context_is_refused():
    with pytest.raises(UsageError, match="25 tokens do not fit a context of 24"):
        GPT(tiny())(ids(tokens=25))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_blocks_are_one_graph_for_the_compiler(layout):
    model = GPT(tiny(layout))
    inputs, targets = ids(), ids()
    expected = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
    model.compile_blocks(whole=True, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # as the compiler looks on
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compiled_block_serves_all_layers_and_not_decoding(layout):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()  # what other tests compiled may serve here
    model = GPT(tiny(layout, num_layers=5))
    inputs, targets = ids(), ids()
    expected = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
    counter = CompileCounter()
    model.compile_blocks(backend=counter)
    for _ in range(2):
        found = torch.autograd.grad(model(inputs, targets), list(model.parameters()))
        torch.testing.assert_close(found, expected)
    # A block (of each of two kinds, and the first, whose input is the embedding), the last norm.
    kinds = 4 if layout == "tide" else 2
    assert counter.frame_count == kinds
    cache = KVCache(model.config, 3, "cpu", torch.float32)
    for token in range(4):
        model.next_logits(inputs[:, token : token + 1], cache)
    assert counter.frame_count == kinds


def test_zero_outputs_make_blocks_add_nothing():
    model = GPT(tiny())
    model.zero_outputs()
    inputs = ids()
    expected = model.final_norm(model.embedding(inputs))
    torch.testing.assert_close(model.hidden(inputs), expected)
    assert model(inputs, inputs).isfinite()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_residual_stream_is_bfloat16_where_that_is_the_precision(layout):
    model, seen = GPT(tiny(layout)), []
    model.blocks[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    inputs = ids()
    exact = model(inputs, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        close = model(inputs, inputs)
    assert seen == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(close, exact, rtol=0.01, atol=0.0)


def test_turning_equals_the_rotation_of_each_pair():
    x, angles = torch.randn(2, 3, 5, 8), torch.randn(5, 4)
    turned = rotate(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(5, 4), angles)
    torch.testing.assert_close(turned, torch.cat((pairs.real, pairs.imag), dim=-1))


def test_dropout_is_where_blocks_add_and_in_gpt2_where_gpt2_has_it():
    for layout in LAYOUTS:
        model = GPT(GPTConfig(50, 16, 2, 32, 2, layout=layout, dropout=0.5))
        model.zero_outputs()  # then blocks add nothing that could be dropped
        ids = torch.arange(16)[None]
        same = torch.equal(model.train().hidden(ids), model.eval().hidden(ids))
        assert same == (layout != "gpt2")
        assert model.blocks[0].dropout == 0.5
        assert model.blocks[0].attention.dropout == (0.5 if layout == "gpt2" else 0.0)


@pytest.mark.parametrize("without_own", [True, False])
def test_the_tide_layout_is_what_its_definition_says(without_own):
    torch.manual_seed(3)
    config = GPTConfig(50, 16, 2, 48, 3, layout="tide", without_own_values=without_own)
    model = GPT(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(50, (2, 16))
    x = start = model.embedding(ids)
    normed = F.rms_norm(start, (48,), eps=config.norm_eps)
    for number, block in enumerate(model.blocks):
        x = block.mix[0] * x + block.mix[1] * start
        seen, inner = block.attention_norm(x), block.attention
        query, key, value = inner.heads(inner.query_key_value(seen), model.cos, model.sin)
        gates = seen[..., :32]
        if number == 1:
            added = (normed @ inner.start_values.weight.T).view(2, 16, 3, 16).transpose(1, 2)
            opened = 2 * torch.sigmoid(inner.value_gate(gates))
            value = value + opened.transpose(1, 2)[..., None] * added
        else:
            assert inner.start_values is None
        scores = query @ key.mT / 4.0
        scores = scores.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), -torch.inf)
        found = scores.softmax(-1) @ value
        if without_own:
            along = (found * value).sum(-1) / value.square().sum(-1)
            found = found - along[..., None] * value
            assert (found * value).sum(-1).abs().max() < 1e-10
        found = found.transpose(1, 2)
        found = found * (2 * torch.sigmoid(inner.head_gate(gates)))[..., None]
        x = x + inner.output(found.flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(model.hidden(ids), model.final_norm(x))


def test_gates_begin_open_and_the_embedding_is_mixed_in():
    model = GPT(GPTConfig(50, 16, 2, 64, 2, layout="tide"))
    for block in model.blocks:
        assert block.mix.tolist() == pytest.approx([1.0, 0.1])
        assert not block.attention.head_gate.weight.any()
        assert not block.attention.head_gate.bias.any()
    assert not model.blocks[1].attention.value_gate.weight.any()
    assert model.blocks[1].attention.start_values.weight.std().item() == pytest.approx(
        0.02, rel=0.1
    )


@pytest.mark.parametrize(
    ("positions", "length"), [(16, 16), (17, 32), (32, 32), (33, 64), (90, 90)]
)
def test_rotary_tables_grow_by_doubling_up_to_the_context(positions, length):
    model = GPT(GPTConfig(10, 90, 1, 8, 1))
    model.reset_buffers(first_positions=16)
    assert model.cos.shape[0] == 16
    cos, sin = model.tables(positions)
    assert cos.shape == sin.shape and cos.shape[0] == length
    wanted = GPT(GPTConfig(10, 90, 1, 8, 1)).tables(90)
    assert torch.equal(cos, wanted[0][:length]) and torch.equal(sin, wanted[1][:length])


@pytest.fixture
def as_quick(monkeypatch):
    """As on a processor with native products."""
    monkeypatch.setattr(_native, "has_quick_products", lambda: True)


@pytest.mark.usefixtures("as_quick")
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore")
def test_a_traced_network_computes_what_the_network_does(layout, has_gradients):
    """Operations are recorded one by one, and native code is none of them."""
    model = GPT(tiny(layout, context_length=128)).eval()
    with torch.set_grad_enabled(has_gradients):
        traced = torch.jit.trace(model, (ids(tokens=128),))
    other = ids(tokens=128)
    with torch.no_grad():
        torch.testing.assert_close(traced(other), model(other), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("as_quick")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_network_without_numbers_has_shapes(layout):
    """As tools compute them that estimate memory."""
    with FakeTensorMode():
        model = GPT(tiny(layout, context_length=128))
        tokens = torch.zeros(2, 128, dtype=torch.int64)
        assert model(tokens).shape == (2, 128, 61)
        model(tokens, tokens).backward()
    assert all(p.grad.shape == p.shape for p in model.parameters() if p.grad is not None)


def test_norms_of_another_precision_are_those_of_torch():
    x, norm = torch.randn(3, 8), RMSNorm(8, 1e-6)
    wanted = norm(x)
    torch.testing.assert_close(norm.bfloat16()(x), wanted)


@pytest.mark.usefixtures("as_quick")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_without_rows_has_gradients_of_zero(layout):
    model = GPT(tiny(layout))
    logits = model(ids(rows=0))
    assert logits.shape == (0, 24, 61)
    logits.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) > 10 and not any(g.any() for g in gradients)


def test_ids_and_targets_are_whole_numbers_of_any_size():
    """Targets in int32, as JAX's loaders give them, ended in an assertion."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50, context_length=8, num_layers=1, width=16, num_heads=1))
    ids, targets = torch.randint(50, (2, 8)), torch.randint(50, (2, 8))
    expected = model(ids, targets).item()
    for dtype in (torch.int32, torch.uint16, torch.uint8):
        assert model(ids.to(dtype), targets.to(dtype)).item() == expected
    for wrong in (ids.float(), ids.bool(), ids.tolist(), ids.numpy()):
        with pytest.raises(UsageError, match=r"ids are of type .*, expected a tensor"):
            model(wrong, targets)
        with pytest.raises(UsageError, match=r"targets are of type .*, expected a tensor"):
            model(ids, wrong)
