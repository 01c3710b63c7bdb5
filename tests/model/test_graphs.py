"""What the compiler is told: some functions are one call of a graph, the loss is in none."""

import pytest
import torch

from lowtide.model import float8_linear, graphs, loss, rotation
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT


def test_described_functions_are_known_to_the_compiler(monkeypatch):
    monkeypatch.setattr(loss, "_compute", loss._compute)
    graphs.describe_to_compiler.cache_clear()
    graphs.describe_to_compiler()
    allowed = torch._dynamo.trace_rules.is_callable_allowed
    assert allowed(float8_linear.multiply_normed)
    assert allowed(rotation.norm_and_rotate)
    assert not allowed(loss.chunked_cross_entropy)
    assert loss._compute._torchdynamo_disable


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("describe", [True, False])
def test_a_network_that_somebody_compiles_gives_the_same_loss(describe, monkeypatch):
    """With or without being told: a model can be compiled by hands that know nothing of it."""
    monkeypatch.setattr(loss, "_compute", loss._ChunkedCrossEntropy.apply)
    if describe:
        graphs.describe_to_compiler.cache_clear()
        graphs.describe_to_compiler()
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=64, context_length=8, num_layers=1, width=16, num_heads=1))
    ids = torch.randint(64, (2, 8))
    expected = model(ids, ids)
    torch._dynamo.reset()
    found = torch.compile(model, backend="eager")(ids, ids)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert model.embedding.weight.grad is not None
