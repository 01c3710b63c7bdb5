"""Signatures of the public functions: made from the settings, true, and seen by type checkers."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

import lowtide
from lowtide import signatures
from lowtide.flatsettings import setting_fields
from lowtide.signatures import options_of
from lowtide.verbs import VERBS

ROOT = Path(__file__).parents[1]


def public_functions() -> list[Any]:
    named = [getattr(lowtide, name) for name in lowtide._HOMES]
    return [value for value in named if hasattr(value, "settings_class")]


SCRIPT = """\
from pathlib import Path
import lowtide

made: lowtide.PrepareResult = lowtide.prepare_dataset(input_files="a.txt", out_dir=Path("x"))
lowtide.prepare_dataset(input_fles="a.txt", out_dir="x")  # error: No parameter named "input_fles"
lowtide.prepare_dataset(out_dir="x", val_fraction="much")  # error: "val_fraction" of type "float"
lowtide.prepare_dataset(config_file="a.toml", input_files=["a", Path("b")], progress=False)
lowtide.prepare_dataset(lowtide.PrepareSettings(input_files=("a",), out_dir=Path("x")))
run: lowtide.TrainResult = lowtide.train(max_iters=10, preset="small-data", learning_rate=1)
lowtide.train(layout="gpt3")  # error: "layout" of type "Literal['qwen3', 'gpt2', 'tide']"
lowtide.train(lowtide.PlanSettings())  # error: "settings" of type "TrainSettings | None"
for name, result in lowtide.evaluate(model_name="a", dataset_dir={"a": "b"}).items():
    assert isinstance(result, lowtide.EvalResult)
    print(name, result.loss, result.perplexty)  # error: "perplexty" for class "EvalResult"
print(lowtide.verify_dataset("data").problems, lowtide.inspect("data", tokens=3).facts)
print(lowtide.verify_dataset("data", "more"))  # error: Expected 1 positional argument
page: lowtide.ReportResult = lowtide.report(Path("run"))
model = lowtide.load_model("a")
data = lowtide.TokenDataset("a", seq_len=8)
lowtide.Trainer(model, data=data, max_iters=3, optimizer="adamw").fit()
lowtide.Trainer(model, data=data, max_itres=3)  # error: No parameter named "max_itres"
model.fit(data, max_iters="a")  # error: "max_iters" of type "int | None"
tokenizer = lowtide.Tokenizer.load("gpt2")
print(lowtide.generate_text(model, tokenizer, "a", temperature=0).upper())
lowtide.generate_text(model, tokenizer, "a", temprature=0)  # error: No overloads
print("".join(lowtide.generate(model_name="a", prompt="b")))
lowtide.prepare("a")  # error: "prepare" is not a known attribute of module "lowtide"
"""


def whole_script() -> str:
    """The script, and for every public function a line that is right and one that is not."""
    lines = [SCRIPT]
    for function in public_functions():
        name, setting = function.__name__, next(iter(setting_fields(function.settings_class)))
        wrong = f"{setting}_of_mine"
        lines.append(f'lowtide.{name}(config_file="a.toml", progress=False)\n')
        lines.append(f'lowtide.{name}({wrong}="a")  # error: No parameter named "{wrong}"\n')
    return "".join(lines)


def test_a_type_checker_sees_every_keyword(tmp_path: Path) -> None:
    """Exactly the lines of a user's script that say so are errors, and each names its mistake."""
    path, script = tmp_path / "script.py", whole_script()
    path.write_text(script)
    config = {"typeCheckingMode": "standard", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    checker = Path(sys.executable).with_name("basedpyright")
    words = [checker, "--outputjson", "--project", tmp_path, "--pythonpath", sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    found: dict[int, str] = {}
    for row in json.loads(done.stdout)["generalDiagnostics"]:
        if row["severity"] == "error":
            found[row["range"]["start"]["line"]] = row["message"]
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(script.splitlines())
        if "# error: " in line
    }
    assert found.keys() == expected.keys(), found
    for number, text in expected.items():
        assert text in found[number]


def load_writer() -> Any:
    spec = importlib.util.spec_from_file_location("writer", ROOT / "tools/write_signatures.py")
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    return writer


def test_what_type_checkers_read_is_up_to_date() -> None:
    writer = load_writer()
    assert writer.STUB.read_text() == writer.stub_text(), "make signatures"
    assert writer.OPTIONS.read_text() == writer.options_text(), "make signatures"


def test_every_verb_has_its_public_function() -> None:
    taken = {function.settings_class for function in public_functions()}
    assert taken == {verb.settings_class() for verb in VERBS.values()}
    for cls in taken:
        assert getattr(lowtide, cls.__name__) is cls


def test_help_shows_every_setting() -> None:
    for function in public_functions():
        check_help(function)


def check_help(function: Any) -> None:
    signature = inspect.signature(function)
    for setting, field in setting_fields(function.settings_class).items():
        parameter = signature.parameters[setting]
        is_required = parameter.default is inspect.Parameter.empty
        assert is_required == (field.default is field.default_factory), setting
        assert re.search(rf"^ +{setting}: \S", inspect.getdoc(function) or "", re.M), setting
    assert signature.parameters["progress"].default == "True"
    assert str(signature).endswith(f" -> {function.__annotations__['return']}")


def test_options_beside_other_arguments_are_shown_too() -> None:
    fit = inspect.signature(lowtide.GPT.fit).parameters
    trainer = inspect.signature(lowtide.Trainer.__init__).parameters
    for parameters in (fit, trainer):
        assert str(parameters["max_iters"]) == "max_iters: int | None = None"
        assert "options" not in parameters
    assert list(trainer)[:3] == ["self", "model", "data"]
    assert "max_iters: " in (lowtide.Trainer.__init__.__doc__ or "")
    text = inspect.signature(lowtide.generate_text).parameters
    assert "temperature" in text and "checkpoints_dir" not in text


def test_types_are_what_callers_may_give() -> None:
    kinds = {option.name: option.kind for option in options_of(lowtide.PrepareSettings)}
    assert kinds["input_files"] == "str | Path | Sequence[str | Path]"
    assert kinds["work_dir"] == "str | Path | None"
    assert kinds["rule_limit"] == "str | Sequence[str] | Mapping[str, float]"
    kinds = {option.name: option.kind for option in options_of(lowtide.CompareSettings)}
    assert kinds["what"].startswith("Sequence[Literal['tokenizer'")
    assert kinds["tokens"] == "str | int"


def test_functions_that_pass_options_on_say_which() -> None:
    """Of `**options: Unpack[…]` every option is a keyword, once, and is in the docstring."""
    name = next(iter(signatures.SETTINGS_OF))

    def show(first: int, *, second: str = "a", **options: Any) -> None:
        """Show it."""

    def plain(first: int, **options: int) -> None:
        """Show it."""

    show.__annotations__["options"] = f"Unpack[{name}]"
    signatures.describe(show)
    signatures.describe(plain)
    assert not hasattr(plain, "__signature__") and plain.__doc__ == "Show it."
    parameters = inspect.signature(show).parameters
    passed = signatures.passed_options(name)
    assert list(parameters) == ["first", "second", *(option.name for option in passed)]
    kinds = {parameters[option.name].kind for option in passed}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["first"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert str(parameters["first"].annotation) == "int"
    assert show.__doc__ == "\n".join(["Show it.", "", *signatures.option_rows(passed)])
    before = inspect.signature(show)
    signatures.describe(show)  # a second time changes nothing
    assert inspect.signature(show) is before or inspect.signature(show) == before

    class Holder:
        method = show

    other = type("Other", (), {"run": plain, "value": 5})
    signatures.describe(Holder)
    signatures.describe(other)
    assert not hasattr(plain, "__signature__")


def test_positions_are_kept_where_they_are_meant() -> None:
    by_position = signatures.Option("a", "int", "", "1", positional=True)
    needed = signatures.Option("b", "str", "", None)
    usual, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert signatures._parameter(by_position).kind is usual
    assert signatures._parameter(needed).kind is keyword
    assert signatures._parameter(needed).default is inspect.Parameter.empty
    assert repr(signatures._parameter(by_position).default) == "1"


def test_lines_about_options() -> None:
    rows = signatures.option_rows(
        [signatures.Option("size", "int", "How many bytes, " + "word " * 30, None),
         signatures.Option("rate", "float", "A rate.", "0.5")]
    )  # fmt: skip
    assert rows[0] == "Args:"
    assert rows[1].startswith("    size: Required. How many bytes, word")
    assert rows[2].startswith("        word") and max(map(len, rows)) <= signatures._WIDTH
    assert rows[-1] == "    rate: A rate."


@dataclasses.dataclass(frozen=True)
class Mixed:
    size: int = 1
    """How much."""
    place: Annotated[str, tyro.conf.Positional] = ""
    """Where."""
    rate: float = 0.5
    """How often."""


def test_what_is_given_by_position_comes_first() -> None:
    options = signatures.options_of(Mixed)
    assert [option.name for option in options[:3]] == ["place", "size", "rate"]
    assert [option.positional for option in options[:3]] == [True, False, False]
    assert [option.name for option in options[3:]] == ["config_file", "progress"]
