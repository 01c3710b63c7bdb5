"""Steps of several rows: as whole passes compute them, and to the bit the same beside others."""

import numpy as np
import pytest
import torch

from lowtide import _native
from lowtide.model import decoder
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import ArrayCache, DecoderSteps
from lowtide.model.families import FAMILIES
from lowtide.model.gpt import GPT
from lowtide.model.rowcaches import RowCache, TensorSteps, open_steps

from .networks import make_model

LENGTHS = (5, 1, 11)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(61, (3, 24), generator=torch.Generator().manual_seed(1)).tolist()


def begin(model, ids, slots=(0, 1, 2), capacity=32, *, make=open_steps):
    steps = make(model, len(slots))
    steps.cache.reserve(capacity)
    for place, slot in enumerate(slots):
        steps.read({place: ids[slot][: LENGTHS[slot]]})
    return steps


@pytest.mark.parametrize("layout", FAMILIES)
@torch.inference_mode()
def test_each_row_is_what_a_whole_pass_computes_and_what_it_is_alone(layout, ids):
    model = make_model(layout)
    assert isinstance(open_steps(model, 1), DecoderSteps)
    together, plain = begin(model, ids), begin(model, ids, make=TensorSteps)
    alone = [begin(model, ids, (slot,), 26 + slot) for slot in range(3)]
    for step in range(8):
        new = [ids[slot][LENGTHS[slot] + step] for slot in range(3)]
        found = torch.from_numpy(together.step([0, 1, 2], new))
        torch.testing.assert_close(plain.step([0, 1, 2], new), found, rtol=1e-4, atol=1e-4)
        for slot in range(3):
            whole = model(torch.tensor([ids[slot][: LENGTHS[slot] + step + 1]]))[0, -1]
            torch.testing.assert_close(found[slot], whole, rtol=1e-4, atol=1e-4)
            assert np.array_equal(alone[slot].step([0], [new[slot]])[0], found[slot])


@torch.inference_mode()
def test_rows_rest_begin_anew_and_may_come_in_any_order(ids):
    model = make_model("llama")
    for make in (open_steps, TensorSteps):
        steps = begin(model, ids, make=make)
        first = torch.as_tensor(steps.step([2, 0], [7, 8]))
        assert steps.cache.lengths == [6, 1, 12]
        for row, (slot, token) in enumerate(((2, 7), (0, 8))):
            whole = model(torch.tensor([[*ids[slot][: LENGTHS[slot]], token]]))[0, -1]
            torch.testing.assert_close(first[row], whole, rtol=1e-4, atol=1e-4)
        again = torch.as_tensor(steps.read({2: ids[0][:3]})[2])
        whole = model(torch.tensor([ids[0][:3]]))[0, -1]
        torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-4)
        steps.cache.copy(2, 1, 3)
        both = torch.as_tensor(steps.step([1, 2], [4, 4]))
        assert torch.equal(both[0], both[1]) and steps.cache.lengths == [6, 4, 4]


@torch.inference_mode()
def test_threads_and_many_rows_change_no_bit(ids):
    torch.manual_seed(0)
    model = GPT(GPTConfig(3001, 16, 1, 128, 4)).eval()  # large enough for several threads
    found = []
    for rows, threads in ((7, 1), (7, 3), (1, 2)):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            steps = open_steps(model, rows)
            steps.cache.reserve(8)
            for slot in range(rows):
                steps.read({slot: [slot + 1, 2]})
            found.append(steps.step(range(rows), [5] * rows))
        finally:
            torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0][:1], found[2])


@pytest.mark.parametrize("kind", [RowCache, ArrayCache])
def test_room_grows_and_keeps_what_is_there(kind):
    config = GPTConfig(8, 100, 2, 8, 2)
    more = ("cpu", torch.float32) if kind is RowCache else ()
    cache = kind(config, 2, *more)
    cache.reserve(3)
    assert cache.capacity == 64
    cache.keys[1][1, 0, 2] = 7.0
    before = cache.keys[0]
    cache.reserve(64)
    assert cache.keys[0] is before  # there is room for them
    cache.reserve(65)
    assert cache.capacity == 100 and cache.keys[0] is not before
    assert cache.keys[1].shape == (2, 2, 100, 4) and cache.keys[1][1, 0, 2].tolist() == [7.0] * 4


def test_half_precision_and_other_networks_do_without_native_code():
    assert isinstance(open_steps(make_model("qwen3").to(torch.bfloat16), 1), TensorSteps)


@torch.inference_mode()
def test_half_precision_rows_are_close_to_whole_passes(ids):
    model = make_model("qwen3").to(torch.bfloat16)
    steps = begin(model, ids)
    found = steps.step([0, 1, 2], [1, 2, 3])
    whole = model(torch.tensor([[*ids[0][:5], 1]]))[0, -1]
    torch.testing.assert_close(found[0].float(), whole.float(), rtol=0.1, atol=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [61]}, "outside the vocabulary"),
        ({"ids": [-1]}, "outside the vocabulary"),
        ({"positions": [32]}, "no room"),
        ({"slots": [1]}, "not in the cache"),
        ({"slots": [0, 0]}, "position and row"),
        ({"num_logits": 2}, "logits follow ids"),
    ],
)
def test_what_lies_outside_is_refused(changes, message):
    network = open_steps(make_model("qwen3"), 1).network
    cache = ArrayCache(network.config, 1)
    cache.reserve(32)
    given = {"slots": [0], "positions": [0], "ids": [1], "num_logits": 1, **changes}
    with pytest.raises(ValueError, match=message):
        network.step(cache, **given)


def test_networks_that_cannot_be_are_refused():
    sizes = [8, 8, 2, 2, 4, 8, 8, 0, 0, 0, 1, 0]
    layer = [1] * 12 + [0] * 8
    for parts, kinds, message in (
        ([[1]], [[0]], "20 parts"),
        ([layer], [], "kinds of numbers"),
        ([layer], [[1] + [0] * 19], "norms, biases and gates are float32"),
        ([layer], [[0] * 4 + [3] + [0] * 15], "no such kind"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Decoder(sizes, 1e-6, 0.0, parts, kinds, [0] * len(parts))
    with pytest.raises(ValueError, match="share keys"):
        _native.Decoder([8, 8, 3, *sizes[3:]], 1e-6, 0.0, [], [], [])


@pytest.mark.parametrize(
    ("mlp_width", "tokens", "widened"),
    [(64, 4, 65_536), (20_000, 4, 80_000), (64, 24, 131_072), (20_000, 24, 705_536)],
)
def test_each_thread_widens_a_block_of_a_matrix(monkeypatch, mlp_width, tokens, widened):
    config = GPTConfig(32, 32, 1, 16, 2, mlp_width=mlp_width)
    attention = _native.attention_room_bytes((1, 1, tokens, 2, 2, 8, 0), False)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(decoder, "usable_cores", lambda cores=cores: cores)
        found.append(decoder.step_bytes(config, rows=1, tokens=tokens))
    assert found[1] - found[0] == 2 * (4 * widened + (attention if tokens == 24 else 0))


def test_tables_of_turns_double_up_to_the_context():
    network = open_steps(make_model("qwen3"), 1).network
    network.config = network.config.replace(context_length=5000)
    network._turns = None
    found = [network._tables(positions)[1] for positions in (1, 1024, 1025, 2048, 2049, 4097)]
    assert found == [1024, 1024, 2048, 2048, 4096, 5000]
