"""Decoding: the cache changes nothing, the context slides, text comes whole, stops are found."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.files import write_json
from lowtide.generation import decoding
from lowtide.generation.decoding import generate_text
from lowtide.generation.generating import generate
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import WRITING_NAMES, GenerateSettings, SamplingSettings
from lowtide.generation.textstreams import (
    TextStream,
    _overlap,
    encode_prompt,
    iter_texts,
    not_text,
    note_unknown,
)
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.tokenizer import Tokenizer
from lowtide.training.modules import wrap_module

from .tokens import iter_tokens, stream_text

GREEDY = SamplingSettings(0.0, 0, 1.0, 1.0)
ALPHABET = "abcdefghij äö\n"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_characters(ALPHABET)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    config = GPTConfig(tokenizer.vocab_size, 12, 2, 32, 2)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


class Scripted:
    """Stands for a model that says a given text, whatever the prompt."""

    training = False
    device = torch.device("cpu")

    def __init__(self, tokenizer, ids):
        self.config = GPTConfig(tokenizer.vocab_size, 8, 1, 8, 1)
        self.embedding = torch.nn.Embedding(2, 2)
        self.ids = iter(ids)

    def row_logits(self, ids, cache):
        return self.next_logits(ids[:, None], cache)

    def next_logits(self, ids, cache):
        logits = torch.zeros(ids.shape[0], self.config.vocab_size)
        logits[:, next(self.ids)] = 10.0
        return logits

    def eval(self):
        return self

    def train(self, mode):
        return self


def test_the_cache_gives_what_whole_passes_give(model):
    ids = [1, 2, 3]
    steps = iter_tokens(model, ids, max_new_tokens=9, sampling=GREEDY)
    found = [int(step) for step in steps]
    with torch.inference_mode():
        for token in found:
            assert token == int(model(torch.tensor([ids]))[0, -1].argmax())
            ids.append(token)


@pytest.mark.parametrize("length", [1, 12, 40])
def test_prompts_and_texts_longer_than_the_context_slide(model, length):
    steps = list(iter_tokens(model, [3] * length, max_new_tokens=50, num_samples=2, seed=1))
    assert len(steps) == 50
    assert all(step.shape == (2,) for step in steps)


def test_a_context_of_one_works(tokenizer):
    model = GPT(GPTConfig(tokenizer.vocab_size, 1, 1, 8, 1)).eval()
    assert len(list(iter_tokens(model, [1, 2], max_new_tokens=5))) == 5


def test_seeds_decide_the_text(model, tokenizer):
    options = {"max_new_tokens": 30, "temperature": 1.0}
    first = generate_text(model, tokenizer, "abc", seed=5, **options)
    assert first == generate_text(model, tokenizer, "abc", seed=5, **options)
    assert first != generate_text(model, tokenizer, "abc", seed=6, **options)
    several = generate_text(model, tokenizer, "abc", seed=5, num_samples=3, **options)
    assert len(several) == 3
    assert len(set(several)) > 1


def test_settings_that_only_the_command_heeds_are_refused(model, tokenizer):
    """`memory` and others were taken and had no effect."""
    given = {"memory": "1MiB", "checkpoints_dir": "runs", "prompt_file": "a.txt", "model_name": "m"}
    given |= {"device": "cuda", "backend": "torch", "best": True, "each_line": True}
    fields = {field.name for field in dataclasses.fields(GenerateSettings)}
    assert fields - {"prompt", "num_samples"} == {*WRITING_NAMES, *given}
    for name, value in given.items():
        with pytest.raises(UsageError, match=f"generate_text takes no {name}: .*in memory") as told:
            generate_text(model, tokenizer, "abc", **{name: value})
        assert "lowtide.generate(" in str(told.value)
    assert generate_text(model, tokenizer, "abc", max_new_tokens=1, memory=None)


def test_sampling_leaves_the_models_mode_and_the_global_dice_alone(model, tokenizer):
    model.train()
    before = torch.get_rng_state()
    generate_text(model, tokenizer, "abc", seed=5, max_new_tokens=5)
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


def test_an_empty_prompt_and_unknown_characters_work(model, tokenizer):
    assert isinstance(generate_text(model, tokenizer, "", max_new_tokens=4), str)
    assert isinstance(generate_text(model, tokenizer, "XYZ€", max_new_tokens=4), str)


def test_stop_texts_end_the_text_even_across_tokens(tokenizer):
    ids = [int(i) for i in tokenizer.encode("abcd efg hij")]
    for stop, expected in (("d e", "abc"), ("zz", "abcd efg hij"), ("a", "")):
        pieces = stream_text(
            Scripted(tokenizer, ids),
            tokenizer,
            "j",
            max_new_tokens=len(ids),
            sampling=GREEDY,
            stop=[stop],
        )
        assert "".join(text for _, text in pieces) == expected


def test_end_of_text_ends_the_text(tokenizer):
    end = tokenizer.end_of_text_id
    ids = [*(int(i) for i in tokenizer.encode("aö")), end, 1, 1]
    text = generate_text(
        Scripted(tokenizer, ids), tokenizer, "b", max_new_tokens=9, preset="deterministic"
    )
    assert text == "aö"


@pytest.fixture
def run(model, tokenizer, tmp_path):
    folder = tmp_path / "checkpoints" / "mine"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", model.config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    tokenizer.save(folder)
    return folder


def test_generate_prints_prompt_and_continuation(run, model, tokenizer):
    options = {"checkpoints_dir": run.parent, "preset": "deterministic", "max_new_tokens": 8}
    text = "".join(generate(model_name="mine", prompt="abc", **options))
    expected = generate_text(model, tokenizer, "abc", preset="deterministic", max_new_tokens=8)
    assert text == f"abc{expected}\n"
    assert "".join(generate(model_name=str(run), prompt="abc", **options)) == text


def test_the_best_weights_are_used_on_request(run, model, tokenizer):
    best = run / "best"
    best.mkdir()
    with torch.no_grad():
        model.embedding.weight.mul_(-1)
    write_json(best / "config.json", model.config.to_huggingface())
    save_weights(best / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    tokenizer.save(best)
    options = {"checkpoints_dir": run.parent, "preset": "deterministic", "max_new_tokens": 8}
    expected = generate_text(model, tokenizer, "abc", preset="deterministic", max_new_tokens=8)
    assert "".join(generate(model_name="mine", prompt="abc", best=True, **options)) == (
        f"abc{expected}\n"
    )
    assert "".join(generate(model_name="mine", prompt="abc", **options)) != f"abc{expected}\n"


def test_prompts_come_from_a_file_line_by_line(run, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\n\ncd\n")
    text = "".join(
        generate(
            model_name="mine",
            checkpoints_dir=run.parent,
            prompt_file=prompts,
            each_line=True,
            num_samples=2,
            max_new_tokens=3,
            seed=1,
        )
    )
    for heading in ("--- 1.1\nab", "--- 1.2\nab", "--- 2.1\ncd", "--- 2.2\ncd"):
        assert heading in text


def test_an_unknown_model_names_those_there_are(run):
    with pytest.raises(DataError, match=r"no model 'mien': runs in .*: mine"):
        list(generate(model_name="mien", checkpoints_dir=run.parent))
    with pytest.raises(DataError, match="prompt file not found"):
        list(generate(model_name="mine", checkpoints_dir=run.parent, prompt_file="nowhere.txt"))


@pytest.mark.usefixtures("events_only")
def test_memory_goes_into_the_metrics_of_the_run(run, capsys):
    metrics = run / "metrics.jsonl"
    metrics.touch()
    "".join(generate(model_name=str(run), prompt="a", num_samples=3, max_new_tokens=2))
    rows = [json.loads(row) for row in metrics.read_text().splitlines()]
    assert [row["job"] for row in rows] == ["generate", "generate"]
    assert rows[0]["done"] == 3 and rows[-1]["event"] == "end"
    assert rows[-1]["peak_memory_bytes"] > 0
    assert "3 of 3 texts" in capsys.readouterr().err


def test_nothing_asked_is_answered_with_text(model, tokenizer):
    """Neither the end nor <unk> comes first, even where the weights want nothing else."""
    with torch.no_grad():
        for name in ("<|endoftext|>", "<unk>"):
            token = tokenizer.special_tokens.get(name)
            if token is not None:
                model.embedding.weight[token] *= 50
    for seed in range(5):
        assert generate_text(model, tokenizer, "", max_new_tokens=3, seed=seed)


def test_unknown_characters_are_named(tmp_path, model, tokenizer, capsys):
    save_weights(tmp_path / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    write_json(tmp_path / "config.json", model.config.to_huggingface())
    tokenizer.save(tmp_path)
    text = "".join(generate(model_name=str(tmp_path), prompt="a☃b世", max_new_tokens=4, seed=1))
    assert text.startswith("a☃b世") and "<unk>" not in text
    assert "read as <unk>: ☃ 世" in capsys.readouterr().err


def test_a_broken_model_does_not_end_a_run_by_its_sample(model, tokenizer):
    with torch.no_grad():
        model.final_norm.weight.fill_(float("nan"))
    assert isinstance(generate_text(model, tokenizer, "a", max_new_tokens=5, seed=0), str)


def feed_all(stream, tokenizer, text):
    return [stream.feed(int(token)) for token in tokenizer.encode(text)]


def test_text_comes_as_soon_as_it_is_certain(tokenizer):
    stream = TextStream(tokenizer, ["bcd", "", "ce"])
    assert stream._stop == ["bcd", "ce"]
    assert feed_all(stream, tokenizer, "abcb") == ["a", "", "", "bc"]  # the last b may begin one
    assert feed_all(stream, tokenizer, "cea") == ["", "b", ""]
    assert stream.finished
    assert stream.feed(1) == "" and stream.end() == ""
    held = TextStream(tokenizer, ["bcd"])
    assert feed_all(held, tokenizer, "ab") == ["a", ""]
    assert held.end() == "b" and held.finished
    assert held.end() == "" and held.feed(1) == ""
    ended = TextStream(tokenizer, ["bcd"])
    feed_all(ended, tokenizer, "b")
    assert ended.feed(tokenizer.end_of_text_id) == "b" and ended.finished


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [("abc", "bcd", 2), ("abc", "abc", 3), ("abc", "x", 0), ("", "x", 0), ("aaa", "aaaa", 3)],
)
def test_overlaps_are_the_longest(text, stop, length):
    assert _overlap(text, stop) == length


def test_how_much_is_written_where_nothing_is_said(model, tokenizer):
    ids = list(iter_tokens(model, [1], sampling=GREEDY, banned=[tokenizer.end_of_text_id]))
    assert len(ids) == 100 and ids[0].shape == (1,)
    assert len(next(iter_tokens(model, [1], num_samples=2))) == 2
    script = [int(tokenizer.encode("a")[0])] * 200
    pieces = list(stream_text(Scripted(tokenizer, script), tokenizer, "a", sampling=GREEDY))
    assert len(pieces) == 100 and {number for number, _ in pieces} == {0}


def test_a_full_cache_is_filled_with_the_newer_half(tokenizer):
    seen = []

    class Watched(Scripted):
        def next_logits(self, ids, cache):
            seen.append((getattr(cache, "length", None) or cache.places(1)[1] - 1, ids.shape[1]))
            return super().next_logits(ids, cache)

    watched = Watched(tokenizer, [1] * 9)
    list(iter_tokens(watched, [2] * 6, max_new_tokens=6, sampling=GREEDY))
    assert seen == [(0, 6), (6, 1), (7, 1), (0, 4), (4, 1), (5, 1)]


def test_ids_beyond_the_tokenizer_and_banned_ones_are_never_chosen(model, tokenizer):
    class Wide(Scripted):
        def next_logits(self, ids, cache):
            return torch.arange(float(self.config.vocab_size)).repeat(ids.shape[0], 1)

    wide = Wide(tokenizer, [])
    last = tokenizer.vocab_size - 1
    assert next(iter_tokens(wide, [1], sampling=GREEDY)).item() == last
    assert next(iter_tokens(wide, [1], sampling=GREEDY, vocab_size=5)).item() == 4
    options = {"sampling": GREEDY, "vocab_size": 5, "banned": [4], "banned_first": [3]}
    assert [t.item() for t in iter_tokens(wide, [1], max_new_tokens=2, **options)] == [2, 3]


def test_an_empty_prompt_is_what_separates_documents(tokenizer):
    ids = encode_prompt(tokenizer, Prompt(""), 8)
    assert ids == [int(i) for i in tokenizer.encode("\n")]
    words = Tokenizer.load("gpt2")
    assert encode_prompt(words, Prompt(""), 8) == [words.end_of_text_id]
    assert encode_prompt(words, Prompt("a b"), 8) == words.encode("a b").tolist()
    no_line = Tokenizer.from_characters("ab")
    assert encode_prompt(no_line, Prompt(""), 8) == [no_line.end_of_text_id]


def test_twenty_strange_characters_are_named_and_more_are_hinted_at(tokenizer, capsys):
    strange = "".join(map(chr, range(0x4E00, 0x4E00 + 21)))
    note_unknown(tokenizer, Prompt(strange[:20] + "ab"))
    shown = capsys.readouterr().err
    assert shown.rstrip().endswith(": " + " ".join(strange[:20]))
    note_unknown(tokenizer, Prompt(strange))
    assert capsys.readouterr().err.rstrip().endswith(" …")
    note_unknown(tokenizer, Prompt("ab"))
    note_unknown(Tokenizer.load("gpt2"), Prompt(strange))
    assert capsys.readouterr().err == ""


def test_several_samples_have_numbers_and_seeds_of_their_own(run, model, tokenizer):
    options = {"model_name": "mine", "checkpoints_dir": run.parent, "prompt": "ab", "device": "cpu"}
    both = "".join(generate(**options, num_samples=2, seed=5, max_new_tokens=6))
    alone = ["".join(generate(**options, seed=seed, max_new_tokens=6)) for seed in (5, 6)]
    assert both == f"--- 1.1\n{alone[0]}--- 1.2\n{alone[1]}"
    assert alone[0] != alone[1]


def test_the_first_of_several_stops_counts_and_no_stop_holds_nothing_back(tokenizer):
    stream = TextStream(tokenizer, ["\u00f6", "abc\u00f6"])
    assert "".join(feed_all(stream, tokenizer, "jabc\u00f6")) == "j"
    free = TextStream(tokenizer, [])
    assert feed_all(free, tokenizer, "ab") == ["a", "b"]
    half = TextStream(Tokenizer.load("gpt2"), [])
    assert half.feed(Tokenizer.load("gpt2").encode("\U0001f469")[0]) == ""
    assert half.end() == "\ufffd"  # half a character is shown as such


def test_seeds_are_used_and_no_seed_is_another_each_time(model):
    def write(seed):
        return [t.item() for t in iter_tokens(model, [1], max_new_tokens=12, seed=seed)]

    assert write(1) == write(1) != write(2)
    assert len({tuple(write(None)) for _ in range(4)}) > 1


def test_the_end_is_no_answer_to_nothing_only(tokenizer):
    end = tokenizer.end_of_text_id
    for prompt, expected in (("", False), ("a", True)):
        script = Scripted(tokenizer, [end] * 3)
        pieces = list(stream_text(script, tokenizer, prompt, max_new_tokens=1, sampling=GREEDY))
        assert (pieces == []) is expected


def test_a_budget_too_small_for_one_row_is_refused_on_a_cpu(run):
    options = {"model_name": "mine", "checkpoints_dir": run.parent, "prompt": "ab", "device": "cpu"}
    with pytest.raises(BudgetError):
        list(generate(**options, memory="1MiB"))


def test_text_is_written_as_a_model_is_evaluated(tokenizer):
    torch.manual_seed(0)
    model = GPT(GPTConfig(tokenizer.vocab_size, 12, 2, 32, 2, dropout=0.9)).train()
    texts = {
        generate_text(model, tokenizer, "ab", max_new_tokens=20, temperature=0.0) for _ in range(3)
    }
    assert len(texts) == 1 and model.training


def test_texts_of_several_samples_come_as_they_are_certain(tokenizer):
    """What might begin a stop text is held back, and comes at the end where it was none."""

    def steps(*texts):
        ids = [tokenizer.encode(text).tolist() for text in texts]
        asked.extend(torch.tensor(step) for step in zip(*ids, strict=True))
        while asked:
            yield asked.pop(0)

    asked = []
    found = list(iter_texts(steps("abca", "jabb"), tokenizer, num_samples=2, stop=["ab", "ad"]))
    assert found == [(1, "j")]
    asked.clear()
    found = list(iter_texts(steps("hida", "figa"), tokenizer, num_samples=2, stop=["ab"]))
    parts = ["".join(text for number, text in found if number == sample) for sample in (0, 1)]
    assert parts == ["hida", "figa"] and found[-2:] == [(0, "a"), (1, "a")]
    asked.clear()
    found = list(iter_texts(steps("abcc", "abcc"), tokenizer, num_samples=2, stop=["ab"]))
    assert found == [] and len(asked) == 2  # nothing more is asked for once all have ended


@pytest.mark.parametrize(("prompts", "samples", "wanted", "rows"), [
    ("a", 1, 8, 1), ("a", 3, 8, 3), (["a", "b"], 4, 3, 3), ([], 2, 8, 1),
])  # fmt: skip
def test_as_many_rows_as_there_are_texts(
    monkeypatch, model, tokenizer, prompts, samples, wanted, rows
):
    """Each row has a cache: none is made that no text would use."""
    asked = []

    def write(steps, choosers, tokenizer, prompts, options):
        asked.append(
            (len(steps.cache.lengths), options.batch_size, choosers.keywords["vocab_size"])
        )
        return iter(())

    monkeypatch.setattr(decoding, "write_prompts", write)
    generate_text(model, tokenizer, prompts, num_samples=samples, batch_size=wanted)
    known = min(tokenizer.vocab_size, model.config.vocab_size)
    assert asked == [(rows, rows, known)]


@pytest.mark.parametrize("prompt", [None, b"ab", [1, 2], 3, ["a", b"b"]])
def test_a_prompt_is_text(model, tokenizer, prompt):
    with pytest.raises(UsageError, match=r"a prompt is of type .*, expected text"):
        generate_text(model, tokenizer, prompt, max_new_tokens=1)


def test_the_model_and_its_tokenizer_are_given(model, tokenizer, tmp_path):
    options = {"max_new_tokens": 4, "seed": 1, "num_samples": "2"}
    tokenizer.save(tmp_path)
    expected = generate_text(model, tokenizer, "ab", **options)
    assert len(expected) == 2
    assert generate_text(model, tmp_path, "ab", **options) == expected
    with pytest.raises(UsageError, match=r"model is of type str, expected a lowtide\.GPT"):
        generate_text("mine", tokenizer, "ab")
    wrapped = wrap_module(torch.nn.Embedding(600, 600), seq_len=8)
    with pytest.raises(UsageError, match=r"model is of type WrappedModule, expected a lowtide"):
        generate_text(wrapped, tokenizer, "ab")
    with pytest.raises(UsageError, match="the tokenizer has 50,257 ids, the model's embedding"):
        generate_text(model, "gpt2", "ab")


def test_an_empty_prompt_becomes_the_first_that_there_is_of_an_end_a_line_break_and_zero():
    def stand_in(kind, end, line, unknown=None, vocab_size=9):
        special = {} if unknown is None else {"<unk>": unknown}
        return SimpleNamespace(
            kind=kind, end_of_text_id=end, special_tokens=special, vocab_size=vocab_size,
            encode=lambda text, special: torch.tensor([] if not len(text) else line),
        )  # fmt: skip

    tokenizers = [
        stand_in("char", 5, [3]), stand_in("char", 5, [8], unknown=8), stand_in("bpe", 5, [3]),
        stand_in("bpe", None, [3]), stand_in("bpe", None, []),
    ]  # fmt: skip
    found = [encode_prompt(one, Prompt(""), 4) for one in tokenizers]
    assert found == [[3], [5], [5], [3], [0]]
    # An id beyond the vocabulary stands for nothing that a model could write.
    assert [not_text(stand_in("char", 5, [3], unknown=n)) for n in (None, 8, 9)] == [[], [8], []]


@pytest.mark.parametrize(("kind", "unknown", "asked"), [
    ("char", 3, ["a", "b"]), ("char", None, []), ("bpe", 3, []), ("bpe", None, []),
])  # fmt: skip
def test_only_characters_that_may_be_unknown_are_looked_up(kind, unknown, asked, capsys):
    looked_up = []

    def encode(text, special):
        looked_up.append(text)
        return [3 if text == "b" else 1]

    special = {} if unknown is None else {"<unk>": unknown}
    one = SimpleNamespace(kind=kind, special_tokens=special, vocab_size=4, encode=encode)
    note_unknown(one, Prompt("aba"))
    assert looked_up == asked
    said = "note: not in the model's vocabulary, read as <unk>: b\n" if asked else ""
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_samples_of_a_prompt_are_a_list(model, tokenizer, samples):
    options = {"num_samples": samples, "max_new_tokens": 2, "seed": 1}
    one, several = (generate_text(model, tokenizer, p, **options) for p in ("a", ["a", "b"]))
    assert isinstance(one, str) if samples == 1 else len(one) == samples
    assert several[0] == one and len(several) == 2
