"""Texts written at once are those written alone, whatever is beside them and ends before."""

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.files import write_json
from lowtide.generation.continuations import Rows
from lowtide.generation.decoding import generate_text
from lowtide.generation.generating import generate
from lowtide.generation.prompts import Prompt, longest_prompt
from lowtide.generation.settings import GenerateSettings, SamplingSettings
from lowtide.generation.textstreams import Start
from lowtide.generation.writing import write_texts
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import DecoderSteps
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.tokenizer import Tokenizer

from .tokens import iter_tokens, open_rows, stream_text

PROMPTS = ["ab", "", "cdefg hij ab", "j", "ab ab ab ab ab ab ab ab ab", "hij"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_characters("abcdefghij \n")


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    model = GPT(GPTConfig(tokenizer.vocab_size, 20, 2, 32, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 3}])
def test_texts_are_what_they_are_alone(model, tokenizer, options):
    """Longer than the context, so that rows are filled again at different times."""
    options = {"max_new_tokens": 40, "seed": 3, **options}
    alone = [generate_text(model, tokenizer, prompt, **options) for prompt in PROMPTS]
    assert len(set(alone)) > 1
    for batch_size in (1, 2, 4, 8):
        together = generate_text(model, tokenizer, PROMPTS, batch_size=batch_size, **options)
        assert together == alone
    samples = generate_text(model, tokenizer, PROMPTS, num_samples=3, batch_size=4, **options)
    assert [of_prompt[0] for of_prompt in samples] == alone
    seeds = [generate_text(model, tokenizer, "ab", **{**options, "seed": 3 + n}) for n in range(3)]
    assert samples[0] == seeds == generate_text(model, tokenizer, "ab", num_samples=3, **options)


def test_the_penalty_of_a_row_is_its_own(model, tokenizer):
    options = {"max_new_tokens": 30, "temperature": 0.0, "repetition_penalty": 1.8}
    alone = [generate_text(model, tokenizer, prompt, **options) for prompt in PROMPTS]
    assert generate_text(model, tokenizer, PROMPTS, **options) == alone
    plain = {**options, "repetition_penalty": 1.0}
    assert generate_text(model, tokenizer, PROMPTS, **plain) != alone


def test_a_prompt_that_several_texts_begin_with_is_read_once(model, monkeypatch):
    read = []
    real = DecoderSteps.read
    monkeypatch.setattr(
        DecoderSteps, "read", lambda self, prompts: read.append(prompts) or real(self, prompts)
    )
    found = [s.tolist() for s in iter_tokens(model, [1, 2, 3], num_samples=4, max_new_tokens=5)]
    assert read == [{0: (1, 2, 3)}] and len(found) == 5 and len(found[0]) == 4


def test_no_more_than_a_few_texts_wait_for_an_earlier_one(model, tokenizer):
    asked = []

    def prompts():
        for number in range(100):
            asked.append(number)
            yield Prompt("a")

    pieces = stream_text(model, tokenizer, prompts(), max_new_tokens=2, batch_size=3)
    for number, _ in pieces:
        assert len(asked) <= number + 1 + 4 * 3
    assert len(asked) == 100


def test_rows_are_given_back(model):
    rows = open_rows(model, 2)
    assert rows.begin([1], max_new_tokens=4) == 0 and not rows.is_full
    assert rows.begin([2, 3], max_new_tokens=4) == 1 and rows.is_full
    assert [slot for slot, _ in rows.step()] == [0, 1]
    rows.end(0)
    assert [slot for slot, _ in rows.step()] == [1]
    assert rows.begin([4], max_new_tokens=4) == 0
    assert [slot for slot, _ in rows.step()] == [0, 1]
    rows.end(0)
    rows.end(1)
    assert rows.step() == []


@pytest.fixture(scope="module")
def run(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    write_json(folder / "config.json", model.config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    tokenizer.save(folder)
    return folder


def test_the_command_prints_texts_in_the_order_of_their_prompts(run, tmp_path, capsys):
    lines = [prompt for prompt in PROMPTS if prompt]
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    options = {"model_name": str(run), "max_new_tokens": 30, "seed": 2, "stop": ("a",)}
    alone = ["".join(generate(**options, prompt=line)) for line in lines]
    several = {"prompt_file": tmp_path / "prompts.txt", "each_line": True}
    for batch_size in (1, 3):
        text = "".join(generate(**options, **several, batch_size=batch_size))
        assert text == "".join(alone)
    capsys.readouterr()
    roomy = "".join(generate(**options, **several, num_samples=2, memory="8GiB"))
    assert "the budget has room for" not in capsys.readouterr().err
    assert [f"--- {i + 1}.{n + 1}\n" in roomy for i in range(len(lines)) for n in range(2)]


def test_fewer_rows_keep_a_small_budget(run, monkeypatch, capsys):
    monkeypatch.setattr("lowtide.generation.generating.fit_rows", lambda *_, **__: 2)
    options = {"model_name": str(run), "max_new_tokens": 4, "seed": 2, "num_samples": 5}
    assert "".join(generate(**options, prompt="ab")).count("---") == 5
    assert "the budget has room for 2 texts at once" in capsys.readouterr().err


def test_prompts_have_no_more_tokens_than_bytes(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\nlonger line\nb")
    options = {"model_name": "m", "prompt_file": path}
    assert longest_prompt(GenerateSettings(**options, each_line=True)) == 11 + 8
    assert longest_prompt(GenerateSettings(**options)) == 15 + 8
    assert longest_prompt(GenerateSettings(model_name="m", prompt="\u00e4")) == 2 + 8


@pytest.mark.parametrize("batch_size", [0, 1025])
def test_batches_have_sizes(batch_size):
    with pytest.raises(UsageError, match="batch_size is"):
        GenerateSettings("m", batch_size=batch_size)


def test_the_oldest_ids_leave_the_penalty(model):
    rows = open_rows(model, 1, sampling=SamplingSettings(0.0, 0, 1.0, 1.5), context=4)
    rows.begin([1, 2, 3], max_new_tokens=9)
    row, ids = rows._rows[0], [1, 2, 3]
    for written in range(1, 6):
        ids += [token for _, token in rows.step()]
        assert sorted(row.chooser.recent.ids.tolist()) == sorted(ids[-4:]), written
        assert list(row.ids) == ids[-2:]  # no more than the half that a full context goes on with


class NotingSteps:
    """Stands for a network: rows of plain lists, and a note of every call."""

    def __init__(self, num_rows):
        self.rows = [[] for _ in range(num_rows)]
        self.lengths = [0] * num_rows
        self.calls = []
        self.cache = self

    def reserve(self, positions):
        self.calls.append(("reserve", positions))

    def copy(self, source, target, length):
        self.calls.append(("copy", source, target, length))
        self.rows[target] = self.rows[source][:length]

    def read(self, prompts):
        self.calls.append(("read", dict(prompts)))
        for slot, ids in prompts.items():
            self.rows[slot], self.lengths[slot] = list(ids), len(ids)
        return {slot: list(ids) for slot, ids in prompts.items()}

    def step(self, slots, ids):
        self.calls.append(("step", list(slots), list(ids)))
        for slot, token in zip(slots, ids, strict=True):
            assert self.lengths[slot] == len(self.rows[slot])
            self.rows[slot].append(token)
            self.lengths[slot] += 1
        return [list(self.rows[slot]) for slot in slots]


class SumChooser:
    """Writes the sum of what a row holds, and notes what may not be written."""

    def __init__(self, ids, size, seed):
        self.given, self.banned = (list(ids), size, seed), []

    def choose(self, logits, banned):
        self.banned.append(tuple(banned))
        return sum(logits)


def noted_rows(num_rows, context):
    steps = NotingSteps(num_rows)
    return Rows(steps, SumChooser, num_rows, context=context, banned=(7,)), steps


def test_what_rows_ask_of_a_network():
    """Equal prompts are read once, and copied as long as the row that read them holds them."""
    rows, steps = noted_rows(3, context=5)
    for seed in (1, 2):
        rows.begin([1, 2], max_new_tokens=2, seed=seed, banned_first=[9])
    assert rows.step() == [(0, 3), (1, 3)]
    assert steps.calls == [("reserve", 4)] * 2 + [("read", {0: (1, 2)}), ("copy", 0, 1, 2)]
    choosers = [row.chooser for row in rows._rows[:2]]
    assert [one.given for one in choosers] == [([1, 2], 4, 1), ([1, 2], 4, 2)]
    steps.calls.clear()
    assert rows.step() == [(0, 6), (1, 6)] and steps.calls == [("step", [0, 1], [3, 3])]
    assert [one.banned for one in choosers] == [[(7, 9), (7,)]] * 2
    steps.calls.clear()
    rows.end(1)
    rows.begin([1, 2], max_new_tokens=9, seed=3)  # the row that read it goes on, and has its ids
    assert rows.step() == [(0, 12), (1, 3)]
    assert steps.calls == [("reserve", 5), ("copy", 0, 1, 2), ("step", [0], [6])]
    assert steps.lengths == [4, 2, 0]


def test_a_row_that_is_filled_again_is_no_more_what_it_read():
    rows, steps = noted_rows(2, context=4)
    rows.begin([1, 2, 3], max_new_tokens=9)
    for expected in (6, 12):
        assert rows.step() == [(0, expected)]
    assert rows.step() == [(0, 18)]  # full: goes on from its newer half
    assert steps.calls[-1] == ("read", {0: (6, 12)})
    rows.begin([1, 2, 3], max_new_tokens=9)
    steps.calls.clear()
    assert rows.step() == [(0, 36), (1, 6)]
    assert steps.calls == [("read", {1: (1, 2, 3)}), ("step", [0], [18])]


def test_prompts_beyond_the_context_are_read_by_their_end():
    rows, steps = noted_rows(1, context=3)
    rows.begin([1, 2, 3, 4, 5], max_new_tokens=1)
    assert rows.step() == [(0, 12)]
    assert steps.calls == [("reserve", 3), ("read", {0: (3, 4, 5)})]


class ScriptedRows:
    """Rows that write given ids."""

    def __init__(self, num_rows, scripts):
        self.num_rows, self._scripts = num_rows, iter(scripts)
        self._going, self.begun = {}, []

    @property
    def is_full(self):
        return len(self._going) == self.num_rows

    def begin(self, ids, **options):
        slot = next(slot for slot in range(self.num_rows) if slot not in self._going)
        self._going[slot] = iter(next(self._scripts))
        self.begun.append((ids, options))
        return slot

    def step(self):
        return [(slot, next(script)) for slot, script in self._going.items()]

    def end(self, slot):
        del self._going[slot]


def test_texts_end_with_what_was_held_back_and_then_with_nothing(tokenizer):
    scripts = [tokenizer.encode(text).tolist() for text in ("jba", "ab", "cda")]
    starts = [Start([n], seed=5 + n, is_empty=n == 1) for n in range(3)]
    rows = ScriptedRows(2, scripts)
    found = list(write_texts(rows, tokenizer, iter(starts), max_new_tokens=3, stop=["ab", "ae"]))
    assert found == [
        (0, "j"), (0, "b"), (1, ""), (0, "a"), (0, ""), (2, "c"), (2, "d"), (2, "a"), (2, "")
    ]  # fmt: skip
    end = (tokenizer.end_of_text_id,)
    assert [ids for ids, _ in rows.begun] == [[0], [1], [2]]
    assert [tuple(options["banned_first"]) for _, options in rows.begun] == [(), end, ()]
    assert [options["seed"] for _, options in rows.begun] == [5, 6, 7]


def test_four_times_as_many_texts_as_rows_wait_for_the_first(tokenizer):
    """The first text is long, all others end at once."""
    end, letter = tokenizer.end_of_text_id, int(tokenizer.encode("a")[0])
    begun = 0

    def starts():
        nonlocal begun
        for _ in range(50):
            begun += 1
            yield Start([1], None, is_empty=False)

    rows = ScriptedRows(2, [[letter] * 30, *([end] for _ in range(49))])
    pieces = write_texts(rows, tokenizer, starts(), max_new_tokens=30)
    for number, text in pieces:
        assert begun <= 8 or not (number == 0 and text)
        if number == 0 and not text:
            assert begun == 8
            break
    assert sum(1 for _, text in pieces if not text) == 42 and begun == 50
