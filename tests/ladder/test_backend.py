"""What the backend of packed networks hands on, and what its engine asks of its parts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowtide.errors import LowtideError, UsageError
from lowtide.generation import sampling
from lowtide.ladder import backend, engine, executor
from lowtide.ladder.backend import BACKEND
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.network import PackedGPT, Stored
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import count_parameters
from lowtide.training.distributed import ProcessGroup
from lowtide.training.settings import train_settings

CPU = torch.device("cpu")
CONFIG = GPTConfig(64, 16, 1, 32, 2)


def test_a_group_of_one_writes_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(
        backend,
        "open_process_group",
        lambda device: contextlib.nullcontext(ProcessGroup(0, 1, gpu)),
    )
    with BACKEND.open_group("cuda") as group:
        assert (group.rank, group.world_size, group.device) == (0, 1, gpu)
        assert not group.saves_beside and ProcessGroup(0, 1, gpu).saves_beside
    copies = BACKEND.make_snapshot()
    value = {"a": torch.zeros(2)}
    copy, wait = copies.take(value)
    wait()
    assert copy is value
    copies.close()


def test_what_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        backend, "pick_device", lambda name: SimpleNamespace(type=f"type of {name}")
    )
    assert BACKEND.device_kind("cuda") == "type of cuda"
    monkeypatch.setattr(backend, "device_memory", lambda device: ("memory of", device))
    assert BACKEND.device_memory(ProcessGroup(0, 1, CPU)) == ("memory of", CPU)
    model = BACKEND.new_model(CONFIG, seed=3, zero_init=True)
    assert BACKEND.held_bytes(model) == 0
    rows = np.ones((64, 32), np.float32)
    BACKEND.set_embedding(model, rows)
    assert torch.equal(model.first_embedding, torch.from_numpy(rows))
    loaded: list[Any] = []
    noting: Any = SimpleNamespace(load_weights=lambda *given, **more: loaded.append((given, more)))
    BACKEND.load_weights(noting, tmp_path)
    BACKEND.load_weights(noting, tmp_path, verify=False)
    assert loaded == [((tmp_path,), {"verify": True}), ((tmp_path,), {"verify": False})]


@pytest.mark.parametrize("rung", ["packed", "disk", "disk-all"])
def test_a_disk_holds_all_scratch_files_or_none_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rung: str
) -> None:
    folder = None if rung == "packed" else tmp_path / "scratch"
    settings = train_settings(
        offload=rung, offload_dir=folder, optimizer="adamw", model_name="m",
        checkpoints_dir=tmp_path,
    )  # fmt: skip
    model = BACKEND.new_model(CONFIG, seed=3)
    blocks = count_parameters(CONFIG, embeddings=False)
    # On a CPU: weights, gradients and moments of blocks, moments of the tables.
    moments = 2 * (1 + 4 / 128)
    wanted = int((3 + 2) * blocks + moments * count_parameters(CONFIG))
    asked: list[Path] = []
    monkeypatch.setattr(backend, "LadderEngine", lambda *given, **more: "engine")
    given: dict[str, Any] = {"rows": 1, "given": None, "note": print}

    def make(free: int) -> object:
        monkeypatch.setattr(backend, "free_disk_bytes", lambda path: asked.append(path) or free)
        state: Any = None
        return BACKEND.make_engine(model, settings, state, ProcessGroup(0, 1, CPU), **given)

    assert make(wanted) == "engine"
    if rung == "packed":
        assert make(0) == "engine" and not asked
        return
    with pytest.raises(LowtideError, match=rf"files of --offload {rung} take .* free") as refused:
        make(wanted - 1)
    assert set(asked) == {folder} and refused.value.path == folder
    assert not tmp_path.joinpath("scratch").exists()


@pytest.mark.parametrize(
    ("size", "device", "kernel", "refused"),
    [
        (1, "cpu", False, ""), (1, "cuda", True, ""), (2, "cpu", True, "these are 2"),
        (1, "mps", False, "--offload on mps needs an NVIDIA GPU and Triton"),
    ],
)  # fmt: skip
def test_where_packed_states_can_be_moved(
    monkeypatch: pytest.MonkeyPatch, size: int, device: str, kernel: bool, refused: str
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(backend, "has_kernel", lambda tensor: kernel)
    monkeypatch.setattr(torch, "empty", lambda *given, **options: options)
    monkeypatch.setattr(backend, "cap_device_memory", lambda *given: made.append(given))
    monkeypatch.setattr(
        backend, "LadderEngine", lambda *given, **more: made.append((given, more)) or "engine"
    )
    group = ProcessGroup(0, size, torch.device(device))
    settings = train_settings(offload="packed", vram="2GiB" if device == "cuda" else None)
    model: Any = object.__new__(PackedGPT)
    model.config = CONFIG
    options: Any = {"rows": 3, "given": None, "note": print}
    made_engine = lambda: BACKEND.make_engine(model, settings, "state", group, **options)  # noqa: E731
    if refused:
        with pytest.raises(UsageError, match=refused):
            made_engine()
        assert not made
        return
    assert made_engine() == "engine"
    asked = ((model, settings, "state", group), {"rows": 3, "note": print})
    assert made == [(group.device, settings.machine.vram), asked]


@pytest.mark.parametrize("verify", [False, True])
def test_weights_are_compared_before_they_are_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verify: bool
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr("lowtide.ladder.network.verify_folder", looked.append)
    model = PackedGPT(CONFIG, seed=0)
    model.load_weights(tmp_path, verify=verify)
    assert looked == [tmp_path] * verify and model._folder == tmp_path


def test_a_stored_matrix_is_cut_and_turned_when_it_is_read() -> None:
    values = torch.arange(12.0).view(4, 3)
    stored = Stored("F32", (4, 3), lambda: values)
    part, turned = stored[1:3], stored.T
    assert part.shape == (2, 3) and torch.equal(part.read(), values[1:3])
    assert turned.shape == (3, 4) and torch.equal(turned.read(), values.t())
    assert stored[-2:].shape == (2, 3) and stored[::2].shape == (2, 3)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_rows_are_added_in_one_order(on_gpu: bool) -> None:
    calls: list[Any] = []
    table: Any = SimpleNamespace(
        is_cuda=on_gpu,
        index_put_=lambda *given, **more: calls.append(("put", given, more)),
        index_add_=lambda *given: calls.append(("add", given)),
    )
    executor._add_rows(table, "rows", "values")  # type: ignore[arg-type]
    put = ("put", (("rows",), "values"), {"accumulate": True})
    assert calls == [put if on_gpu else ("add", (0, "rows", "values"))]


def noting_outline(calls: list[Any]) -> Any:
    return SimpleNamespace(
        eval=lambda: calls.append("eval"), train=lambda: calls.append("train")
    )  # fmt: skip


def test_losses_are_added_up_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(engine, "LossSums", lambda loss, **options: (loss, options))
    monkeypatch.setattr(engine, "token_byte_counts", lambda tokenizer: f"bytes of {tokenizer}")
    stand_in: Any = SimpleNamespace(
        _counts=None, model=SimpleNamespace(outline=noting_outline(calls)),
        _executor=SimpleNamespace(loss="loss"), _group=SimpleNamespace(device=CPU),
    )  # fmt: skip
    for tokenizer, counts in ((None, None), ("a", "bytes of a"), ("b", "bytes of a")):
        with LadderEngine.eval_sums(stand_in, tokenizer, batch_size=3) as sums:
            assert calls.pop() == "eval"
            options = {"device": CPU, "batch_size": 3, "byte_counts": counts}
            assert sums == ("loss", options)
        assert calls.pop() == "train" and not calls


@pytest.mark.parametrize(("script", "text"), [([3, 4, 5], [3, 4, 5]), ([3, 9, 5], [3]), ([9], [])])
def test_a_sample_is_computed_anew_for_every_token(
    monkeypatch: pytest.MonkeyPatch, script: list[int], text: list[int]
) -> None:
    calls: list[Any] = []
    given = iter(script)

    def choose(logits: Any, seen: Any, settings: Any, *, generator: Any, **options: Any) -> Any:
        assert logits == f"logits of {seen.tolist()}"
        assert options == {"vocab_size": 10, "banned": [7]} and generator.initial_seed() == 5
        calls.append(seen.tolist())
        return torch.tensor([next(given)])

    monkeypatch.setattr(sampling, "choose_tokens", choose)
    monkeypatch.setattr(sampling, "not_text", lambda tokenizer: [7])
    monkeypatch.setattr(sampling, "ends", lambda tokenizer: [9])
    monkeypatch.setattr(engine, "encode_prompt", lambda tokenizer, prompt, context: [1, 2])
    outline = noting_outline(calls)
    stand_in: Any = SimpleNamespace(
        _settings=train_settings(sample_tokens=3, seed=5), _group=SimpleNamespace(device=CPU),
        model=SimpleNamespace(config=SimpleNamespace(context_length=4), outline=outline),
        _executor=SimpleNamespace(next_logits=lambda seen: f"logits of {seen.tolist()}"),
    )  # fmt: skip
    tokenizer: Any = SimpleNamespace(vocab_size=10, decode=list)
    assert LadderEngine.sample(stand_in, tokenizer) == text
    seen = [[[1, 2, *script][: 2 + n][-4:]] for n in range(len(script))]
    stopped = script.index(9) + 1 if 9 in script else len(script)
    assert calls == ["eval", *seen[:stopped], "train"]


@pytest.mark.parametrize(("dropout", "training", "seeds"), [
    (0.0, True, False), (0.5, False, False), (0.5, True, True), (0.0, False, False),
])  # fmt: skip
def test_the_dice_are_set_for_dropout_alone(
    monkeypatch: pytest.MonkeyPatch, dropout: float, training: bool, seeds: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", asked.append)
    stand_in: Any = SimpleNamespace(
        config=CONFIG.replace(dropout=dropout), _outline=SimpleNamespace(training=training)
    )
    executor.Executor._seed(stand_in, (1, 2))
    assert asked == [hash((1, 2)) & (2**63 - 1)] * seeds


def test_memory_of_blocks_comes_back_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("lowtide.ladder.network.return_large_blocks", lambda: asked.append("cpu"))
    model = PackedGPT(CONFIG, seed=0)
    model.settle("packed", CPU, in_float32=False, scratch_dir=tmp_path)
    assert asked == ["cpu"] and model.muon is None


def test_what_a_step_tells_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have a rate and a decay of their own; each chunk is known by its place."""
    steps: list[Any] = []
    monkeypatch.setattr(
        engine, "take_step", lambda *given, position: steps.append((*given, position))
    )

    def moving(name: str, layer: int | None, position: int, parts: list[slice]) -> Any:
        unit = SimpleNamespace(name=name, layer=layer, position=position)
        chunks = [(part, f"chunk of {name}") for part in parts]
        memory = torch.arange(10.0)
        return SimpleNamespace(
            unit=unit, weights=memory, gradients=-memory, iter_chunks=lambda: iter(chunks)
        )

    parts = [slice(0, 4), slice(4, 6)]
    units = [moving("table", None, 100, parts), moving("block", 0, 200, parts),
             moving("matrices", 1, 300, parts)]  # fmt: skip
    moved: list[Any] = []
    for norm, loss, clip, decay in (
        (4.0, 1.0, 2.0, None), (4.0, 1.0, 8.0, 0.25), (4.0, 1.0, 0.0, 0.0),
        (4.0, np.nan, 2.0, None), (np.inf, 1.0, 0.0, None),
    ):  # fmt: skip
        steps.clear()
        moved.clear()
        learning = {"grad_clip": clip, "weight_decay": 0.5, "embedding_decay": decay}
        settings = train_settings(**learning)
        places = SimpleNamespace(
            iter_moving=lambda: iter(units), is_muons=lambda unit: unit.name == "matrices"
        )
        muon = SimpleNamespace(move=lambda *given: moved.append(given))
        stand_in: Any = SimpleNamespace(
            _settings=settings, _norm=torch.tensor(norm), learning_rate=0.5, _embedding_rate=3.0,
            _placement=places,
            _steps=torch.tensor(7.0, dtype=torch.float64), model=SimpleNamespace(muon=muon),
            _numbers=lambda factor, goes, rate, decay: (float(factor), float(goes), rate, decay),
            _muon_numbers=lambda factor, goes, rate: ("muon", float(factor), float(goes), rate),
            _move_smalls=lambda numbers: moved.append(numbers),
        )  # fmt: skip
        found, skipped = LadderEngine.update(stand_in, torch.tensor(loss), 0.5)
        goes = float(np.isfinite(norm) and np.isfinite(loss))
        assert torch.equal(found, stand_in._norm) and skipped == 1 - goes
        assert stand_in._steps == 7 + goes
        factor = min(1.0, clip / norm) if clip else 1.0
        table = (factor, goes, 0.75, 0.5 if decay is None else decay)
        block = (factor, goes, 0.25, 0.5)
        assert [(chunk, numbers, place) for _, chunk, _, numbers, place in steps] == [
            ("chunk of table", table, 100), ("chunk of table", table, 104),
            ("chunk of block", block, 200), ("chunk of block", block, 204),
        ]  # fmt: skip
        assert [part.tolist() for part, *_ in steps[:2]] == [[0, 1, 2, 3], [4, 5]]
        assert (-steps[1][2]).tolist() == [4, 5]
        assert moved == [(units[2], ("muon", factor, goes, 0.25)), (factor, goes, 0.25, 0.0)]


@pytest.mark.parametrize(("taken", "counted"), [(0.0, 1), (1.0, 1), (3.0, 3)])
def test_the_numbers_of_a_step(taken: float, counted: int) -> None:
    settings = train_settings(
        beta1=0.75, beta2=0.5, weight_decay=0.25, momentum_warmup=0,
        cautious_decay=True, optimizer="muon", seed=5,
    )  # fmt: skip
    stand_in: Any = SimpleNamespace(
        _settings=settings, _betas=(0.75, 0.5), _momentum=0.9,
        _steps=torch.tensor(taken, dtype=torch.float64),
        state=SimpleNamespace(step=8), _kinds=["PackedAdamW", "PackedMuon"],
    )  # fmt: skip
    stand_in._seed = lambda: LadderEngine._seed(stand_in)
    one = torch.ones((), dtype=torch.float64)
    found = LadderEngine._numbers(stand_in, one / 2, one, 0.1, 0.2)
    assert (found.beta1, found.beta2, found.eps) == (0.75, 0.5, 1e-8)
    assert found.seed == hash((5, 8)) & 0xFFFFFFFF
    first, second = 1 - 0.75**counted, 1 - 0.5**counted
    expected = [0.5, 1.0, 0.1 / first, second**-0.5, 1 - 0.02]
    assert found.scalars.tolist() == pytest.approx(expected, rel=1e-6)
    muon = LadderEngine._muon_numbers(stand_in, one / 2, one, 0.1)
    assert (muon.momentum, muon.cautious, muon.seed) == (0.9, True, found.seed)
    assert muon.scalars.tolist() == pytest.approx([0.5, 1.0, 0.1, 1 - 0.025], rel=1e-6)
    rows = [{"kind": kind, "values": {"": {"steps": taken}}} for kind in stand_in._kinds]
    scale = {"value": 1.0, "good_steps": 0.0}
    assert LadderEngine.numbers(stand_in) == {"loss_scale": scale, "optimizers": rows}


@pytest.mark.parametrize("goes", [0.0, 1.0])
def test_gains_and_biases_are_moved_as_adamw_does(goes: float) -> None:
    values, first, second = torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])
    gradient = torch.tensor([3.0 if goes else torch.nan])
    smalls = SimpleNamespace(values=values, first=first, second=second, gradients=gradient)
    scalars = torch.tensor([0.5, goes, 0.1, 4.0, 0.0])
    numbers = engine.StepNumbers(0.75, 0.5, 0.01, 1, scalars)
    stand_in: Any = SimpleNamespace(_smalls=smalls)
    LadderEngine._move_smalls(stand_in, numbers)
    if not goes:
        assert [values.item(), first.item(), second.item()] == [2.0, 0.5, 0.25]
        return
    one, two = 0.75 * 0.5 + 0.25 * 1.5, 0.5 * 0.25 + 0.5 * 1.5**2
    moved = 2.0 - 0.1 * one / (two**0.5 * 4 + 0.01)
    found = [values.item(), first.item(), second.item()]
    assert found == pytest.approx([moved, one, two], rel=1e-6)


def test_a_stored_tensor_says_its_size() -> None:
    sizes = [Stored(kind, (3, 5), lambda: torch.zeros(1)).nbytes for kind in ("F32", "I8", "U8")]
    assert sizes == [60, 15, 15]
