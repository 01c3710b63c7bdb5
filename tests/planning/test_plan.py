"""Plans: what they say of machines and models, and that their commands are commands."""

import json
import math
import shlex
import subprocess
import sys

import numpy as np
import pytest

from lowtide.arguments import parse_settings
from lowtide.cli import main
from lowtide.corpus.evaluations import load_items, smallest_item_budget
from lowtide.corpus.settings import CleaningSettings
from lowtide.errors import BudgetError, UsageError
from lowtide.files import write_json
from lowtide.model.config import GPTConfig
from lowtide.planning import make_plan
from lowtide.planning.settings import PlanSettings, parse_count
from lowtide.planning.summary import describe_plan, plan_as_json
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training.footprint import fit_micro_batch
from lowtide.training.settings import TrainSettings

GIB = 1 << 30


def train_settings(command):
    """Read a `lowtide train` command line as the command line does."""
    words = shlex.split(command)
    assert words[:2] == ["lowtide", "train"]
    return parse_settings(TrainSettings, words[2:], program="", summary="")


@pytest.mark.parametrize("ram", ["8GiB", "16GiB", "32GiB"])
def test_a_machine_named_by_its_memory_gets_commands_that_keep_it(ram):
    plan = make_plan(ram=ram)
    assert plan.fits and plan.chosen is not None
    assert [shlex.split(line)[1] for line in plan.commands] == [
        "train-tokenizer",
        "prepare",
        "train",
    ]
    settings = train_settings(plan.commands[-1])
    budget = plan.machine.budget_bytes
    assert plan.needs[-1].memory_bytes <= budget <= int(ram[:-3]) * GIB
    # The command trains as it is written: the trainer finds no reason to cut its micro-batches.
    assert fit_micro_batch(plan.chosen.config, settings, budget) == settings.batch.batch_size


def test_the_guides_three_machines_get_their_vocabularies_and_all_cores():
    found = {}
    for cores, ram in ((16, "32GiB"), (8, "16GiB"), (4, "8GiB")):
        words = shlex.split(make_plan(ram=ram, cores=cores, tokens="2G").commands[0])
        found[ram] = [words[words.index(f) + 1] for f in ("--vocab-size", "--processes")]
    assert found == {"32GiB": ["32000", "16"], "16GiB": ["16000", "8"], "8GiB": ["8000", "4"]}


def test_what_does_not_fit_gets_the_cheapest_change_that_does():
    wanted = {"size": "50M", "batch_size": 64, "seq_len": 256, "tokens": "1G", "vocab_size": 8000}
    large = make_plan(ram="64GiB", **wanted)
    assert large.asked.fits and large.chosen is large.asked
    small = make_plan(ram="8GiB", **wanted)
    assert not small.asked.fits and not small.asked_fits
    assert small.fits and small.chosen is not None
    assert small.chosen.settings.batch.rows_per_step == 64  # a step still sees as many
    assert small.chosen.settings.batch.batch_size < 64
    assert not small.chosen.settings.computing.activation_checkpointing
    tiny = make_plan(ram="1536MiB", **wanted)
    assert tiny.chosen is not None and tiny.chosen.fits
    assert len(tiny.chosen.changes) > 1
    assert "nearest that fits" in describe_plan(tiny)


def test_a_model_far_too_large_gets_the_largest_that_fits():
    plan = make_plan(ram="2GiB", size="5B", tokens="1G")
    assert plan.chosen is not None and plan.chosen.fits
    assert 1_000_000 < plan.compute.parameters < 500_000_000
    assert plan.chosen.settings.model.seq_len == 256
    used = plan.chosen.footprint.total_bytes / plan.machine.budget_bytes
    assert 0.8 < used <= 1


def test_nothing_fits_where_nothing_can():
    plan = make_plan(ram="300MiB", size="1B")
    assert plan.chosen is None and not plan.fits and not plan.commands
    assert "does not fit" in describe_plan(plan)


def test_a_gpu_is_planned_by_its_own_memory():
    plan = make_plan(ram="32GiB", vram="16GiB", size="150M", tokens="3G")
    assert plan.fits and plan.chosen is not None
    assert plan.chosen.settings.computing.use_mixed_precision
    assert plan.chosen.footprint.device_bytes <= plan.machine.vram_budget_bytes < 16 * GIB
    assert plan.asked_fits  # nobody asked for larger micro-batches
    assert "on the GPU" in describe_plan(plan)


@pytest.mark.parametrize("vram", ["8GiB", "16GiB", "24GiB", "80GiB"])
@pytest.mark.parametrize("size", [None, "350M", "1.5B"])
def test_every_gpu_gets_a_command_that_fits_it(vram, size):
    options = {} if size is None else {"size": size}
    plan = make_plan(ram="64GiB", vram=vram, **options)
    assert plan.fits and plan.chosen is not None
    settings = train_settings(plan.commands[-1])
    assert settings.computing.use_mixed_precision and settings.computing.compile
    assert plan.chosen.settings.batch.rows_per_step == settings.batch.rows_per_step
    assert plan.chosen.footprint.device_budget_bytes <= plan.machine.vram_budget_bytes
    assert plan.machine.vram_budget_bytes < int(vram[:-3]) * GIB


def test_a_tpu_gets_whole_batches_and_a_loader_for_jax():
    plan = make_plan(tpu=True)
    settings = train_settings(plan.commands[-1])
    assert (settings.batch.batch_size, settings.batch.gradient_accumulation_steps) == (128, 1)
    assert settings.computing.use_mixed_precision and not plan.machine.is_this
    assert (settings.computing.backend, settings.machine.device, settings.computing.compile) == (
        "jax",
        "tpu",
        False,
    )
    text = describe_plan(plan)
    assert "TPU core with 16.0 GiB" in text and "batch_size=128" in text
    wider = make_plan(tpu=True, vram="32GiB", ram="64GiB")
    assert wider.machine.vram_bytes == 32 * GIB and wider.machine.ram_bytes == 64 * GIB


@pytest.mark.parametrize("vram", [None, "24GiB"])
def test_a_plan_for_jax_counts_and_says_what_jax_takes(vram):
    plan = make_plan(ram="32GiB", vram=vram, tokens="50M", size="10M", backend="jax")
    settings = train_settings(plan.commands[-1])
    assert (settings.computing.backend, settings.computing.compile) == ("jax", False)
    assert plan.chosen is not None and plan.chosen.settings.computing.backend == "jax"
    assert "interpreter and jax" in describe_plan(plan)
    other = make_plan(ram="32GiB", vram=vram, tokens="50M", size="10M")
    assert other.chosen is not None and "--backend" not in other.commands[-1]
    # A GPU keeps what torch keeps without compiling; on a CPU the pass has a formula of its own.
    ours, others = plan.chosen.footprint, other.chosen.footprint
    assert ours.activations != others.activations
    assert vram is None or ours.activations > others.activations


def test_a_plan_for_jax_has_no_rungs():
    plan = make_plan(ram="8GiB", vram="8GiB", tokens="50M", size="3B", backend="jax")
    assert plan.chosen is not None and "--offload" not in plan.commands[-1]


@pytest.mark.parametrize(
    ("machine", "buffer"),
    [({"ram": "8GiB"}, 5000), ({"ram": "16GiB"}, 10_000), ({"ram": "32GiB"}, 50_000),
     ({"tpu": True}, 100_000)],
)  # fmt: skip
def test_a_stream_is_one_command_with_a_buffer_by_the_machine(machine, buffer):
    plan = make_plan(**machine, dataset_id="owner/name", size="1M")
    assert ("--backend jax" in plan.commands[0]) is plan.machine.is_tpu
    (command,) = plan.commands
    settings = train_settings(command)
    assert settings.data.dataset_id == "owner/name" and settings.data.shuffle_buffer_size == buffer
    assert [need.stage for need in plan.needs] == ["load", "train"]
    plain = make_plan(**machine, tokens="20M", size="1M", vocab_size=plan.data.vocab_size)
    held = 4 * 4 * buffer * settings.model.seq_len  # two blocks of ids, each twice
    more = plan.needs[0].memory_bytes - plain.needs[-2].memory_bytes
    assert held < more < held + (90 << 20)  # a block of text, two encoders


def test_files_that_are_streamed_teach_the_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text("words and more words, of some length\n" * 300_000)
    plan = make_plan(ram="8GiB", dataset_id=str(tmp_path / "*.txt"))
    settings = train_settings(plan.commands[0])
    assert settings.data.vocab_size == plan.data.vocab_size == 2600
    assert plan.data.train_tokens == pytest.approx(11_100_000 / plan.data.bytes_per_token, rel=0.01)


def test_little_data_gets_a_small_model():
    small, large = make_plan(ram="8GiB", tokens="10M"), make_plan(ram="8GiB", tokens="1G")
    assert small.compute.parameters == pytest.approx(2_000_000, rel=0.05)
    assert small.compute.epochs < 4.3
    assert large.compute.parameters > 3 * small.compute.parameters
    assert "sees them once should have 500k parameters" in small.compute.describe_best_size()
    assert "sees them once should have 50M parameters" in large.compute.describe_best_size()


def test_bfloat16_is_never_advised_for_a_cpu():
    plans = [make_plan(ram=ram, size="100M", tokens="1G") for ram in ("1GiB", "2GiB", "4GiB")]
    chosen = [plan.chosen for plan in plans if plan.chosen is not None]
    assert chosen  # one of them is large enough
    assert not any(way.settings.computing.use_mixed_precision for way in chosen)


def test_tokens_and_epochs():
    plan = make_plan(ram="8GiB", size="10M", tokens="50M")
    compute = plan.compute
    assert compute.optimal_tokens == 20 * compute.parameters
    assert 20 < compute.fitted_tokens / compute.parameters < 40
    assert math.isclose(compute.epochs, compute.planned_tokens / 50_000_000)
    words = shlex.split(plan.commands[-1])
    assert words[words.index("--max-iters") + 1] == str(compute.steps)
    little = make_plan(ram="8GiB", size="10M", tokens="1M")
    assert little.compute.epochs <= 16.1


def test_text_files_and_datasets_are_measured(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("some plain words of text, over and over\n" * 2000)
    plan = make_plan(ram="8GiB", input_files=[str(text)], size="1M")
    assert plan.data.text_bytes == text.stat().st_size
    assert [need.stage for need in plan.needs] == ["train-tokenizer", "prepare", "load", "train"]
    ids = tmp_path / "ids.npy"
    np.save(ids, np.zeros(1000, dtype=np.uint16))
    stored = make_plan(ram="8GiB", dataset_dir=ids, vocab_size=512, size="1M")
    assert stored.data.train_tokens == 900
    assert [need.stage for need in stored.needs] == ["load", "train"]
    assert f"--train-data-path {ids}" in stored.commands[0]


def test_a_config_file_is_the_model(tmp_path):
    config = tmp_path / "small.json"
    config.write_text(json.dumps({"num_layers": 2, "width": 64, "num_heads": 2, "batch_size": 4}))
    plan = make_plan(ram="8GiB", config_file=config, tokens="1M", vocab_size=300, seq_len=32)
    assert plan.asked.config.num_layers == 2 and plan.asked.settings.batch.batch_size == 4
    command = plan.commands[-1]
    assert f"--config-file {config}" in command and "--seq-len 32" in command
    assert "--num-layers" not in command


def test_evaluation_items_are_counted_as_prepare_counts_them(tmp_path):
    items = tmp_path / "items.jsonl"
    items.write_text('{"text": "%s"}' % ("low tide at the old shore " * 60_000))
    wanted = {"ram": "8GiB", "tokens": "10M", "vocab_size": 8000, "memory": "96MiB"}
    without = make_plan(**wanted).needs[1]
    need = make_plan(**wanted, decontaminate=[str(items)]).needs[1]
    assert need.stage == "prepare" and need.disk_bytes > without.disk_bytes
    assert need.least_bytes > without.least_bytes and "evaluation items" in need.note
    with pytest.raises(BudgetError, match="more than a third"):
        load_items(
            [str(items)], CleaningSettings(), budget_bytes=smallest_item_budget([str(items)]) - 1
        )
    assert (
        len(load_items([str(items)], CleaningSettings(), budget_bytes=need.least_bytes).table) > 0
    )
    with pytest.raises(UsageError, match="names no file"):
        make_plan(**wanted, decontaminate=["nowhere.jsonl"])


def test_json_and_text_say_the_same(capsys):
    assert main(["plan", "--ram", "8GiB", "--size", "5M", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    plan = make_plan(ram="8GiB", size="5M")
    assert answer == json.loads(json.dumps(plan_as_json(plan)))
    assert answer["fits"] is True and answer["commands"] == plan.commands
    text = describe_plan(plan)
    for part in ("weights", "gradients", "optimizer states", "activations", "logits", "framework"):
        assert part in text


def test_planning_never_imports_torch():
    code = (
        "import sys; from lowtide.cli import main; main(['plan', '--ram', '8GiB']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "1M", "dataset_dir": "x"}, "expected one of them"),
        ({"size": "1M", "target_params": 5}, "expected one of them"),
        ({"ram": "much"}, "not a size"),
        ({"ram": "8"}, r"ram is 8 \(8 B\), expected at least 32.0 MiB"),
        ({"vocab_size": 256}, "vocab_size is 256, expected at least 257"),
        ({"tokens": "many"}, "expected a number"),
        ({"cores": 0}, "at least 1"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        build_settings(PlanSettings, options)


def test_counts_are_read_as_people_write_them():
    assert [parse_count(word) for word in ("1.5B", "500m", "10k", "1e6", "1_000")] == [
        1_500_000_000,
        500_000_000,
        10_000,
        1_000_000,
        1000,
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), (1, 1), ("0.5", None), ("0", None), ("2k", 2000)]
)
def test_the_smallest_count_is_one(text, count):
    if count is not None:
        assert parse_count(text) == count
        return
    with pytest.raises(UsageError, match="expected a number"):
        parse_count(text)


@pytest.mark.parametrize(
    ("memory", "words"), [("4GiB", "4GiB"), ("3GiB", "3GiB"), ("4095MiB", "4095MiB")]
)
def test_commands_name_the_budget_in_whole_units(memory, words):
    plan = make_plan(ram="8GiB", memory=memory)
    assert plan.machine.budget_bytes % (1 << 20) == 0
    for line in plan.commands:
        assert f"--memory {words}" in line


@pytest.mark.parametrize(
    ("tokens", "vocabulary"), [("3M", 2900), ("50M", 12000), ("2B", 32000), (None, 32000)]
)
def test_the_vocabulary_suits_the_number_of_tokens_where_there_is_no_text(tokens, vocabulary):
    plan = make_plan(ram="64GiB", vram="24GiB", cores=12, tokens=tokens)
    assert plan.data.vocab_size == vocabulary
    assert plan.chosen is not None


def test_a_published_model_is_planned_with_its_shape_and_its_tokenizer(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = GPTConfig(300, 128, 2, 32, 2, layout="olmo2")
    write_json(tmp_path / "tiny" / "config.json", config.to_huggingface())
    Tokenizer.from_merges([(b"l", b"o"), (b"lo", b"w")]).save(folder)
    plan = make_plan(init_from_model=str(folder), tokens="1M", ram="8GiB")
    assert plan.asked.config == config and plan.fits
    assert not plan.data.learns_tokenizer and plan.data.vocab_size == 259
    assert f"--init-from-model {folder}" in plan.commands[-1]
    assert f"--tokenization {folder}" in plan.commands[0] and "train-tokenizer" not in str(
        plan.commands
    )
    for machine in ({"ram": "8GiB"}, {"vram": "16GiB"}, {"vram": "16GiB", "seq_len": 64}):
        plan = make_plan(init_from_model=str(folder), tokens="1M", **machine)
        # Of 1024 tokens, the rows on a GPU were longer than the model's context: train refused.
        assert f"--seq-len {machine.get('seq_len', 128)} " in plan.commands[-1]
    with pytest.raises(UsageError, match="--init-from-model and --size are given"):
        make_plan(init_from_model=str(folder), size="1M")
    large = GPTConfig(300, 128, 64, 8192, 64, layout="llama")
    write_json(tmp_path / "tiny" / "config.json", large.to_huggingface())
    plan = make_plan(init_from_model=str(folder), tokens="1M", ram="8GiB")
    assert plan.chosen is None and "training this model needs" in describe_plan(plan)


def test_dropout_is_part_of_a_plan_and_of_its_command():
    asked = {"ram": "8GiB", "cores": 2, "tokens": "10M", "size": "1M", "layout": "gpt2"}
    plain, dropped = (
        make_plan(**asked, seq_len=1024, batch_size=4, measure=False, dropout=rate)
        for rate in (None, 0.1)
    )
    assert train_settings(dropped.commands[-1]).model.dropout == 0.1
    assert "--dropout" not in plain.commands[-1]
    sizes = [plan.asked.footprint.activations for plan in (plain, dropped)]
    assert sizes[1] > 3 * sizes[0]  # in gpt2 attention has dropout, too: all scores exist
