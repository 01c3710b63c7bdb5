"""Which backend a command takes, and what is said of one that is not there."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide import packages
from lowtide.errors import BudgetError
from lowtide.generation import generating, settings
from lowtide.generation.settings import GenerateSettings, WritingSettings
from lowtide.packages import MissingPackageError, choose_backend
from lowtide.training.settings import EvaluateSettings


@pytest.mark.parametrize(
    ("installed", "asked", "chosen"),
    [
        ({"torch", "jax"}, "auto", "torch"),
        ({"torch"}, "auto", "torch"),
        ({"jax"}, "auto", "jax"),
        ({"torch", "jax"}, "jax", "jax"),
        ({"torch", "jax"}, "torch", "torch"),
    ],
)
def test_auto_takes_what_is_installed(monkeypatch, installed, asked, chosen):
    monkeypatch.setattr(packages, "has_package", {*installed, "safetensors"}.__contains__)
    monkeypatch.setattr(settings, "has_accelerator", lambda: True)
    assert choose_backend(asked, "generating") == chosen
    assert GenerateSettings(model_name="m", backend=asked).chosen_backend() == chosen
    options = {"model_name": "m", "dataset_dir": ("d",)}
    assert EvaluateSettings(**options, backend=asked).chosen_backend() == chosen


@pytest.mark.parametrize(
    ("installed", "asked", "needed"),
    [(set(), "auto", "torch"), ({"torch"}, "jax", "jax"), ({"jax"}, "torch", "torch")],
)
def test_what_is_missing_is_named_with_its_command(monkeypatch, installed, asked, needed):
    monkeypatch.setattr(packages, "has_package", {*installed, "safetensors"}.__contains__)
    with pytest.raises(MissingPackageError, match=f"needs the package {needed}") as caught:
        choose_backend(asked, "generating")
    assert caught.value.next_step == f'pip install "lowtide[{needed}]"'


@pytest.mark.parametrize(
    ("installed", "has_gpu", "device", "asked", "chosen"),
    [
        ({"torch", "jax"}, False, "auto", "auto", "native"),
        ({"torch"}, True, "cpu", "auto", "native"),
        ({"torch"}, True, "cuda", "auto", "torch"),
        ({"torch"}, False, "cuda", "auto", "torch"),  # which says that there is none
        (set(), True, "auto", "auto", "native"),
        ({"torch"}, True, "auto", "native", "native"),
        ({"torch"}, False, "cpu", "torch", "torch"),
    ],
)
def test_native_code_writes_on_a_cpu(monkeypatch, installed, has_gpu, device, asked, chosen):
    monkeypatch.setattr(packages, "has_package", {*installed, "safetensors"}.__contains__)
    monkeypatch.setattr(settings, "has_accelerator", lambda: has_gpu)
    given = GenerateSettings(model_name="m", backend=asked, device=device)
    assert given.chosen_backend() == chosen


@pytest.mark.parametrize(
    ("backend", "rows", "fits", "found", "said"),
    [
        ("torch", 1, (90, 5), (90, 1), []),  # a single text is written in any case
        ("torch", 2, (90, 2), (90, 2), []),
        ("native", 4, (90, 3), (90, 3), ["the budget has room for 3 texts at once"]),
        ("torch", 4, (40, 1), (40, 1), ["40 tokens of 90 keep the budget",
                                        "the budget has room for 1 text at once"]),
    ],
)  # fmt: skip
def test_as_much_is_written_at_once_as_the_budget_holds(
    monkeypatch, backend, rows, fits, found, said
):
    asked, noted = [], []

    def fit(name, result):
        def call(*given, **options):
            asked.append((name, given, options))
            return result

        return call

    monkeypatch.setattr(generating, "fit_context", fit("context", fits[0]))
    monkeypatch.setattr(generating, "fit_rows", fit("rows", fits[1]))
    monkeypatch.setattr(generating, "vocabulary_bytes", lambda folder: 11)
    monkeypatch.setattr(generating, "held_bytes", lambda folder, config: 22)
    monkeypatch.setattr(generating, "longest_prompt", lambda settings: 30)
    given = SimpleNamespace(chosen_backend=lambda: backend, max_new_tokens=20)
    progress = SimpleNamespace(budget_bytes=77, note=noted.append)
    room = generating._fit_budget(
        given, generating._Room(90, rows), "config", Path("folder"), "program", progress
    )
    assert (room.context, room.rows) == found and noted == said
    shared = {"program": "program", "backend": backend, "tokenizer_bytes": 11,
              "weight_bytes": 22 if backend == "native" else 0}  # fmt: skip
    more = {"tokens": min(fits[0], 50), "is_running": True, "generates": True}
    calls = [("context", ("config", 77), {**shared, "wanted": 50})]
    calls += [("rows", ("config", rows, 77), {**shared, **more})] if rows > 1 else []
    assert asked == calls


@pytest.mark.parametrize(("backend", "smallest"), [("native", 7), ("native", 99), ("torch", 7)])
def test_layers_are_read_in_turns_where_the_budget_holds_no_more(monkeypatch, backend, smallest):
    noted = []

    def fit(config, budget, *, weight_bytes, **options):
        if weight_bytes > budget or backend == "torch":
            raise BudgetError(f"{weight_bytes} do not fit")
        return 40

    monkeypatch.setattr(generating, "fit_context", fit)
    monkeypatch.setattr(generating, "fit_rows", lambda config, rows, budget, **options: 2)
    monkeypatch.setattr(generating, "vocabulary_bytes", lambda folder: 11)
    monkeypatch.setattr(generating, "held_bytes", lambda folder, config: 88)
    monkeypatch.setattr(generating, "turns_bytes", lambda folder, config: smallest)
    monkeypatch.setattr(generating, "longest_prompt", lambda settings: 30)
    given = SimpleNamespace(chosen_backend=lambda: backend, max_new_tokens=20)
    progress = SimpleNamespace(budget_bytes=77, note=noted.append)
    rooms = generating._Room(40, 1), generating._Room(40, 2)
    for room in rooms:
        fitting = (given, room, "config", Path("folder"), "program", progress)
        if backend == "torch" or smallest > 77:
            with pytest.raises(BudgetError):
                generating._fit_budget(*fitting)
            continue
        assert generating._fit_budget(*fitting) == generating._Room(40, room.rows, in_turns=True)
    said = ["the budget does not hold all weights: layers are read for every token"] * 2
    assert noted == (said if backend == "native" and smallest == 7 else [])


class NotingWriter:
    """Stands for a backend: notes what it is asked for."""

    most_rows = 5

    def __init__(self, is_cpu):
        self.networks = SimpleNamespace(
            open=lambda device: f"place of {device}", is_cpu=lambda place: is_cpu,
            device_memory=lambda place: None, load=lambda folder, place: (folder, place),
        )  # fmt: skip

    def stream(self, model, tokenizer, prompts, options):
        self.asked = model, [one.text for one in prompts], options
        return iter([(1, "y"), (1, ""), (0, "x"), (0, "")])


@pytest.mark.parametrize(
    ("is_cpu", "num_prompts", "options", "rows"),
    [
        (True, 1, {"num_samples": 2}, 2),  # as many as there are texts
        (True, 1, {"num_samples": 2, "batch_size": 1}, 1),
        (True, 9, {"num_samples": 2}, 5),  # as many as the backend writes
        (False, 1, {"num_samples": 2}, 2),
        (False, 0, {"num_samples": 2}, 1),  # no prompt: no row, and still a cache of one
    ],
)
def test_what_a_backend_is_asked_for(monkeypatch, tmp_path, is_cpu, num_prompts, options, rows):
    writer, asked = NotingWriter(is_cpu), []
    given = GenerateSettings(model_name="m", prompt="ab", backend="native", seed=3, **options)

    def fit(settings, room, config, folder, program, progress):
        asked.append((settings, room, config, folder, program))
        return generating._Room(room.context - 1, room.rows)

    def program_here(*given, **options):
        asked.append((given, options))
        return "program"

    config = SimpleNamespace(context_length=20)
    tokenizer = SimpleNamespace(kind="bpe", special_tokens={}, vocab_size=3)
    for name, stand_in in {
        "find_model_dir": lambda name, folder: tmp_path,
        "_open_writer": lambda settings: writer,
        "count_prompts": lambda settings: num_prompts,
        "program_here": program_here,
        "Tokenizer": SimpleNamespace(load=lambda folder: tokenizer),
        "load_config": lambda folder: config,
        "require_vocabulary": lambda *given: asked.append(given),
        "read_sections": lambda *given: given,
        "begin_token": lambda given: 17 if given == (tokenizer, tmp_path) else 0,
        "_fit_budget": fit,
        "sleep_while_waiting": lambda: asked.append("sleep"),
    }.items():
        monkeypatch.setattr(generating, name, stand_in)
    text = "".join(generating.generate(given))
    assert text == "--- 1.1\nabx\n--- 1.2\naby\n"
    wanted = min(options.get("batch_size", 8), 2 * num_prompts, 5)
    program = ((0,), {"device": "auto", "backend": "native"})
    assert asked[:3] == ["sleep", program, (tokenizer, config, tmp_path)]
    fitted = [(given, generating._Room(20, wanted), config, tmp_path, "program")]
    assert asked[3:] == (fitted if is_cpu else [])
    assert writer.asked == (
        (tmp_path, "place of auto"), ["ab"],
        WritingSettings(19 if is_cpu else 20, num_samples=2, max_new_tokens=100, stop=(), seed=3,
                       sampling=given.sampling(), begin=17, batch_size=rows),
    )  # fmt: skip
