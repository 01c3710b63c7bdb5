"""What is decided by the kind of device, with stand-ins for GPUs that are not here."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.ladder.engine import LadderEngine
from lowtide.model import blocks, devices, float8, kernels
from lowtide.model.blocks import SwiGLU, rotate
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.rotation import has_fused_rotation
from lowtide.training import distributed
from lowtide.training.distributed import ProcessGroup
from lowtide.training.muon import orthogonalize
from lowtide.training.stepping import Stepper

CPU, GPU, MPS = torch.device("cpu"), torch.device("cuda:1"), torch.device("mps")
GIB = 1 << 30


def test_a_group_says_what_its_device_wants():
    said = {
        device.type: (group.on_cpu, group.pins_memory, group.saves_beside)
        for device in (CPU, GPU, MPS)
        for group in (ProcessGroup(0, 1, device),)
    }
    nothing = (False, False, False)
    assert said == {"cpu": (True, False, False), "cuda": (False, True, True), "mps": nothing}
    assert [ProcessGroup(rank, 2, CPU).is_first for rank in (0, 1)] == [True, False]


@pytest.mark.parametrize("engine", [Stepper, LadderEngine])
def test_peaks_are_those_of_a_gpu(engine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 77)
    for device, peak in ((CPU, None), (GPU, 77)):
        stand_in = SimpleNamespace(_group=SimpleNamespace(device=device))
        assert engine.device_peak_bytes(stand_in) == peak


def test_memory_of_a_gpu_is_told_and_capped(monkeypatch):
    capped = []
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8 * GIB)
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: capped.append(given)
    )
    assert devices.device_memory(CPU) is devices.device_memory(MPS) is None
    assert devices.device_memory(GPU)() == (5, 8 * GIB)
    devices.cap_device_memory(CPU, None)
    with pytest.raises(UsageError, match="vram is 2GiB, and training is on cpu"):
        devices.cap_device_memory(CPU, "2GiB")
    for vram in ("1KiB", "4GiB", "8GiB", "80GiB"):
        devices.cap_device_memory(GPU, vram)
    context = devices.CUDA_CONTEXT_BYTES
    shares = [0.0, (4 * GIB - context) / (8 * GIB), (8 * GIB - context) / (8 * GIB), 1.0]
    assert capped == [(share, GPU) for share in shares]


@pytest.mark.parametrize(
    ("device", "capability", "hip", "has"),
    [(CPU, (9, 0), None, False), (GPU, (8, 8), None, False), (GPU, (8, 9), None, True),
     (GPU, (9, 0), None, True), (GPU, (9, 0), "6.2", False)],
)  # fmt: skip
def test_which_gpus_multiply_eight_bits(monkeypatch, device, capability, hip, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: name)
    assert float8.has_float8(device) is has
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: None)
    assert float8.has_float8(device) is False


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("kind", "by"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_processes_talk_by_what_their_devices_have(monkeypatch, started, kind, by):
    noted = []
    monkeypatch.setattr(distributed.ranks, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.ranks, "by_torchrun", lambda: True)
    monkeypatch.setattr(distributed.ranks, "local_rank", lambda: 1)
    monkeypatch.setattr(distributed, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", noted.append)
    dist = SimpleNamespace(
        is_initialized=lambda: started, init_process_group=noted.append, get_rank=lambda: 1,
        destroy_process_group=lambda: noted.append("left"),
    )  # fmt: skip
    monkeypatch.setattr(distributed, "dist", dist)
    with contextlib.suppress(KeyError), distributed.open_process_group(kind) as group:
        assert group == ProcessGroup(1, 2, GPU if kind == "cuda" else CPU)
        raise KeyError
    assert noted == [*([GPU] * (kind == "cuda")), *([] if started else [by, "left"])]


class OnGPU(torch.Tensor):
    """A tensor of this machine that says it is on a GPU."""

    is_cuda = True


def test_rotated_pairs_are_the_same_on_a_gpu():
    dice = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 5, 8, generator=dice)
    angles = torch.randn(5, 4, generator=dice)
    here = rotate(x, angles.cos(), angles.sin())
    there = rotate(x.as_subclass(OnGPU), angles.cos(), angles.sin())
    torch.testing.assert_close(there.as_subclass(torch.Tensor), here)
    assert not torch.equal(here, x)


@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_mlp_is_the_same_on_a_gpu(bias):
    torch.manual_seed(4)
    config = GPTConfig(16, 8, 1, 16, 1, layout="llama", mlp_bias=bias)
    mlp, x = SwiGLU(config), torch.randn(2, 3, 16)
    calls = []
    mlp.gate_up.register_forward_hook(lambda *given: calls.append("whole"))
    here = mlp(x)
    there = mlp(x.as_subclass(OnGPU)).as_subclass(torch.Tensor)
    torch.testing.assert_close(there, here)
    assert len(calls) == (2 if bias else 1)  # in two products where no bias is added


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 5, 4), (1, 4, 12), (1, 12, 4), (1, 6, 6)])
def test_updates_are_made_orthogonal_on_a_gpu_in_two_bytes(shape):
    torch.manual_seed(5)
    matrices = torch.randn(shape)
    made = orthogonalize(matrices.as_subclass(OnGPU)).as_subclass(torch.Tensor)
    assert made.dtype == torch.bfloat16
    assert orthogonalize(matrices).dtype == torch.float32
    sizes = torch.linalg.svdvals(made.float())
    assert sizes.min() > 0.6 and sizes.max() < 1.3


@pytest.mark.parametrize(
    ("head_dim", "fused"), [(8, False), (16, True), (24, False), (64, True), (96, False)]
)
def test_kernels_are_for_gpus_and_heads_of_their_sizes(monkeypatch, head_dim, fused):
    here = torch.zeros(1)
    there = here.as_subclass(OnGPU)
    assert has_fused_rotation(there, head_dim, has_triton=True) is fused
    assert not has_fused_rotation(there, head_dim, has_triton=False)
    assert not has_fused_rotation(here, head_dim, has_triton=True)
    for spec, has in (("there", True), (None, False)):
        monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert kernels.has_fused_loss(there) is has and not kernels.has_fused_loss(here)


class Votes:
    """Stands for torch.distributed among three processes: others say 5, or what is set."""

    class ReduceOp:
        MIN = "min"

    def __init__(self):
        self.calls = []

    def all_reduce(self, value, op="sum"):
        self.calls.append((value.item(), op))
        value.copy_(torch.minimum(value, torch.tensor(5)) if op == "min" else value + 5 + 5)

    def all_gather_object(self, said, value):
        said[:] = [value] * len(said)

    def broadcast_object_list(self, box, src):
        self.calls.append((list(box), src))
        box[0] = "of the first"

    def barrier(self):
        self.calls.append("barrier")


def test_what_processes_agree_on(monkeypatch):
    votes = Votes()
    monkeypatch.setattr(distributed, "dist", votes)
    alone, group = ProcessGroup(0, 1, CPU), ProcessGroup(1, 3, CPU)
    own = torch.tensor(2.0)
    assert alone.mean(own) is own and group.mean(own).item() == 4.0 and own.item() == 2.0
    assert (alone.any(True), alone.any(False), alone.least(9)) == (True, False, 9)
    assert alone.all_say("x") == ["x"] and alone.first_says("x") == "x"
    alone.wait()
    assert votes.calls == [(2.0, "sum")]
    votes.calls.clear()
    assert group.any(False) is True and group.least(9) == 5 and group.least(3) == 3
    assert group.all_say("x") == ["x"] * 3 and group.first_says("x") == "of the first"
    group.wait()
    assert votes.calls == [(0.0, "sum"), (9, "min"), (3, "min"), (["x"], 0), "barrier"]
    votes.all_reduce = lambda value: value.copy_(torch.zeros(()))
    assert group.any(False) is False


def test_models_are_copied_or_divided_block_by_block(monkeypatch):
    import torch.distributed.device_mesh as meshes
    import torch.distributed.fsdp as fsdp

    calls = []
    monkeypatch.setattr(meshes, "init_device_mesh", lambda *given: ("mesh", *given))
    monkeypatch.setattr(fsdp, "fully_shard", lambda part, mesh: calls.append((part, mesh)))
    monkeypatch.setattr(
        distributed, "DistributedDataParallel", lambda *given, **options: (given, options)
    )
    model, group = SimpleNamespace(blocks=["a", "b"]), ProcessGroup(0, 2, GPU)
    assert distributed.wrap_model(model, ProcessGroup(0, 1, GPU), parallel="fsdp") is model
    assert calls == []
    assert distributed.wrap_model(model, group, parallel="fsdp") is model
    assert calls == [(part, ("mesh", "cuda", (2,))) for part in ("a", "b", model)]
    options = {"gradient_as_bucket_view": True}
    for place, ids in ((GPU, [GPU]), (CPU, None)):
        found = distributed.wrap_model(model, ProcessGroup(0, 2, place), parallel="ddp")
        assert found == ((model,), {"device_ids": ids, **options})
    with pytest.raises(UsageError, match="parallel is 'x', expected ddp or fsdp"):
        distributed.wrap_model(model, group, parallel="x")


@pytest.mark.parametrize("wanted", [False, True])
def test_gradients_are_added_up_where_it_is_wanted(monkeypatch, wanted):
    noted = []

    class Copies:
        @contextlib.contextmanager
        def no_sync(self):
            noted.append("no sync")
            yield

    monkeypatch.setattr(distributed, "DistributedDataParallel", Copies)
    divided = SimpleNamespace(set_requires_gradient_sync=noted.append)
    for network, expected in (
        (Copies(), [] if wanted else ["no sync"]), (divided, [wanted]), (SimpleNamespace(), []),
    ):  # fmt: skip
        noted.clear()
        with distributed.gradient_sync(network, wanted=wanted):
            assert noted == expected


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_of_a_gpu_are_normed_and_turned_by_one_kernel(monkeypatch, kv_heads):
    """The kernel gives tokens before heads, and is told all that the plain code knows."""
    torch.manual_seed(6)
    config = GPTConfig(16, 8, 1, 32, 2, num_kv_heads=kv_heads)
    attention = GPT(config).blocks[0].attention
    sizes = (2 + 2 * kv_heads) * config.head_dim
    x, angles = torch.randn(3, 5, sizes), torch.randn(5, config.head_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    asked = []
    monkeypatch.setattr(blocks.rowkernels, "can_fuse", lambda *tensors: False)
    plain = attention.heads(x, cos, sin)
    monkeypatch.setattr(blocks, "has_fused_rotation", lambda x, head_dim: head_dim == 16)

    def kernel(*given):
        asked.append(given)
        return tuple(part.transpose(1, 2) for part in plain)

    monkeypatch.setattr(blocks, "norm_and_rotate", kernel)
    found = attention.heads(x, cos, sin)
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
    assert [part.shape[1] for part in found] == [2, kv_heads, kv_heads]
    ((joint, *gains, turned, up, heads, own, eps),) = asked
    assert joint is x and (turned is cos, up is sin) == (True, True)
    own_gains = (attention.query_norm.weight, attention.key_norm.weight)
    assert all(one is two for one, two in zip(gains, own_gains, strict=True))
    assert (heads, own, eps) == (2, kv_heads, config.norm_eps)
