"""Block by block gives the loss and the gradients of the whole network, wherever blocks live."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.ladder import executor as executor_module
from lowtide.ladder.executor import Executor
from lowtide.ladder.network import PackedGPT
from lowtide.ladder.placement import Rung
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT

SHAPES = {
    "qwen3": {},
    "gpt2": {"layout": "gpt2"},
    "llama, untied": {"layout": "llama", "tie_weights": False, "num_kv_heads": 1},
    "qwen2": {"layout": "qwen2"},
    "olmo2": {"layout": "olmo2"},
}


def _config(**changes: object) -> GPTConfig:
    shape = {"vocab_size": 96, "context_length": 16, "num_layers": 3, "width": 32, "num_heads": 2}
    return GPTConfig(**{**shape, **changes})  # pyright: ignore[reportArgumentType]


def _settled(config: GPTConfig, rung: Rung, folder: Path) -> tuple[PackedGPT, Executor]:
    model = PackedGPT(config, seed=3)
    model.settle(rung, torch.device("cpu"), in_float32=True, scratch_dir=folder)
    assert model.placement is not None and model.smalls is not None
    executor = Executor(
        model.outline, model.placement, model.smalls, dtype=torch.float32, chunk_tokens=24
    )
    return model, executor


def _batch(config: GPTConfig) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(config.vocab_size, (4, 13), generator=generator)  # below the context
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _gradients(model: PackedGPT) -> dict[str, torch.Tensor]:
    assert model.placement is not None and model.smalls is not None
    found = dict(model.smalls.named(model.smalls.gradients))
    for unit in model.units:
        flat = model.placement._gradient_home(unit).get(unit.name).view(torch.bfloat16)
        for matrix in unit.matrices:
            found[matrix.name] = flat[matrix.where].view(matrix.shape).float()
        model.placement._gradient_home(unit).drop(unit.name)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_the_first_weights_are_those_of_the_network(name: str, tmp_path: Path) -> None:
    config = _config(**SHAPES[name])
    torch.manual_seed(3)
    whole = GPT(config)
    model, _ = _settled(config, "packed", tmp_path)
    for key, value in model.state_dict().items():
        own = value.read() if hasattr(value, "read") else value
        torch.testing.assert_close(own, whole.state_dict()[key], rtol=2.0**-16, atol=0)


@pytest.mark.parametrize("rung", ["packed", "disk"])
@pytest.mark.parametrize("name", SHAPES)
def test_loss_and_gradients_are_those_of_the_network(name: str, rung: Rung, tmp_path: Path) -> None:
    config = _config(**SHAPES[name])
    torch.manual_seed(3)
    whole = GPT(config)
    model, executor = _settled(config, rung, tmp_path)
    with torch.no_grad():
        for key, value in whole.state_dict().items():
            own = model.state_dict()[key]
            value.copy_(own.read() if hasattr(own, "read") else own)
    ids, targets = _batch(config)
    loss, norm = executor.compute(ids, targets, rows=2, key=(1, 2))
    expected = whole(ids, targets)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    found = _gradients(model)
    for key, parameter in whole.named_parameters():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(
            found[key], parameter.grad, rtol=2.0**-7, atol=1e-5 * scale + 1e-9
        )
    total = torch.nn.utils.get_total_norm(
        [p.grad for p in whole.parameters() if p.grad is not None]
    )
    torch.testing.assert_close(norm, total, rtol=1e-3, atol=0)
    torch.testing.assert_close(executor.loss(ids, targets), expected.detach(), rtol=1e-5, atol=1e-5)
    model.placement.close()  # pyright: ignore[reportOptionalMemberAccess]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["gpt2", "qwen3"])
def test_the_backward_pass_drops_what_the_forward_pass_did(layout: str, tmp_path: Path) -> None:
    model, executor = _settled(_config(layout=layout, dropout=0.3), "packed", tmp_path)
    model.outline.train()
    assert model.placement is not None and model.smalls is not None
    ids, targets = _batch(model.config)
    loss, _ = executor.compute(ids, targets, rows=2, key=(1, 2))
    assert torch.equal(loss, executor.compute(ids, targets, rows=2, key=(1, 2))[0])
    assert not torch.equal(loss, executor.compute(ids, targets, rows=2, key=(1, 3))[0])
    executor.compute(ids, targets, rows=2, key=(1, 2))
    gradients, step = _gradients(model), 2.0**-6
    for name in ("embedding.weight", "blocks.0.attention_norm.weight"):
        own = model.state_dict()[name]
        value = own.read() if hasattr(own, "read") else own.clone()
        slope = float((gradients[name] * value).sum())
        found = []
        for factor in (1 + step, 1 - step):
            _set(model, name, value * factor)
            found.append(float(executor.compute(ids, targets, rows=2, key=(1, 2))[0]))
        _set(model, name, value)
        assert (found[0] - found[1]) / (2 * step) == pytest.approx(slope, rel=0.03, abs=1e-4)


def _set(model: PackedGPT, name: str, value: torch.Tensor) -> None:
    """Give a parameter other numbers."""
    assert model.placement is not None and model.smalls is not None
    smalls = model.smalls.named(model.smalls.values)
    if name in smalls:
        smalls[name].copy_(value)
        return
    unit = next(unit for unit in model.units if unit.matrices[0].name == name)
    wide = torch.zeros(unit.size)
    wide[unit.matrices[0].where] = value.flatten()
    model._fill(unit, wide)


@pytest.mark.parametrize(
    ("layout", "dropout", "training", "drops"),
    [
        ("gpt2", 0.5, True, True), ("gpt2", 0.5, False, False), ("gpt2", 0.0, True, False),
        ("qwen3", 0.5, True, False),
    ],
)  # fmt: skip
def test_what_tables_give_is_dropped_in_gpt2_alone(
    monkeypatch: pytest.MonkeyPatch, layout: Any, dropout: float, training: bool, drops: bool
) -> None:
    seeds: list[Any] = []
    stand_in: Any = SimpleNamespace(
        config=_config(layout=layout, dropout=dropout), _seed=seeds.append,
        _outline=SimpleNamespace(training=training),
    )  # fmt: skip
    xs = [torch.ones(2, 3), torch.ones(4, 3)]
    dropped: list[Any] = []
    monkeypatch.setattr(
        torch.nn.functional, "dropout", lambda x, share: dropped.append((x, share)) or -x
    )
    found = Executor._drop_first(stand_in, list(xs), ("key",))
    signs = [-1.0, -1.0] if drops else [1.0, 1.0]
    assert [float(x[0, 0]) for x in found] == signs
    assert seeds == ([("key", 0, -1), ("key", 1, -1)] if drops else [])
    assert [share for _, share in dropped] == [0.5, 0.5] * drops


@pytest.mark.parametrize("layout", ["qwen3", "gpt2"])
def test_rows_of_many_lengths_are_continued_in_few_shapes(layout: str, tmp_path: Path) -> None:
    """What fills them up is behind the token that is asked for, so it changes nothing."""
    config = _config(layout=layout, context_length=150)
    model, executor = _settled(config, "packed", tmp_path)
    model.outline.eval()
    ids = torch.randint(config.vocab_size, (1, 150), generator=torch.Generator().manual_seed(1))
    shapes: set[torch.Size] = set()
    hidden = executor.hidden

    def noting(filled: torch.Tensor) -> torch.Tensor:
        shapes.add(filled.shape)
        return hidden(filled)

    executor.hidden = noting  # pyright: ignore[reportAttributeAccessIssue]
    for length in (1, 2, 63, 64, 65, 127, 129, 150):
        found = executor.next_logits(ids[:, :length])
        with executor._placement.weights(executor._head) as tables:
            matrix = tables[executor._head.matrices[0].name]
            plain = torch.nn.functional.linear(hidden(ids[:, :length])[:, -1], matrix)
        assert torch.allclose(found, plain.float(), atol=1e-4), length
    assert shapes == {(1, 64), (1, 128), (1, 150)}


def test_gradients_of_several_micro_batches_are_added_in_float32() -> None:
    matrices = [
        SimpleNamespace(name="a", where=slice(0, 2)),
        SimpleNamespace(name="b", where=slice(2, 5)),
    ]
    unit: Any = SimpleNamespace(size=5, matrices=matrices)
    for wide in (False, True):
        sums = executor_module._Sums(unit, wide=wide, dtype=torch.bfloat16)
        for _ in range(2):
            sums.add({"a": torch.ones(1, 2), "b": torch.full((3, 1), 0.001)})
        assert sums.flat.dtype == (torch.float32 if wide else torch.bfloat16)
        assert sums.flat.tolist() == pytest.approx([2, 2, 0.002, 0.002, 0.002], rel=0.01)


def test_angles_are_made_for_the_longest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def tables(config: GPTConfig, tokens: int) -> Any:
        made.append(tokens)
        return torch.arange(tokens)[:, None].expand(-1, 9), torch.ones(tokens, 9)

    monkeypatch.setattr(executor_module, "rotary_tables", tables)
    stand_in: Any = SimpleNamespace(
        config=_config(), _tables=None, _dtype=torch.bfloat16,
        _placement=SimpleNamespace(device=torch.device("cpu")),
    )  # fmt: skip
    for tokens, count in ((4, 1), (3, 1), (4, 1), (5, 2)):
        cos, sin = Executor._angles(stand_in, tokens)
        assert cos is not None and sin is not None and len(made) == count
        assert cos.shape == sin.shape == (tokens, 9) and cos.dtype == torch.bfloat16
    stand_in.config = _config(layout="gpt2")
    assert Executor._angles(stand_in, 4) == (None, None)
