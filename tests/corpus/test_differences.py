"""What differs is named: settings by their flag, inputs by their name."""

from __future__ import annotations

from pathlib import Path

from lowtide.corpus.differences import find_changed_input, find_changed_setting
from lowtide.corpus.inputs import InputFile, expand_inputs


def make(folder: Path, *names: str) -> list[InputFile]:
    for name in names:
        (folder / name).write_text(name)
    return list(expand_inputs([folder / name for name in names]))


def compare(inputs: list[InputFile], rows: list[str]) -> str | None:
    def explain(source: InputFile, row: str) -> str | None:
        return f"{row} changed" if source.path.read_text() != source.path.name else None

    return find_changed_input(inputs, rows, name_of=str, explain=explain)


def test_only_settings_of_now_are_compared() -> None:
    assert find_changed_setting({"seed": 0, "memory": "1GiB"}, {"seed": 0}) is None
    assert find_changed_setting({}, {"text_field": "text"}) == (
        "it was made with --text-field None, now it is text"
    )


def test_inputs_by_name_then_by_what_their_rows_say(tmp_path: Path) -> None:
    inputs = make(tmp_path, "a.txt", "b.txt")
    names = [str(source.path) for source in inputs]
    assert compare(inputs, names) is None
    assert compare(inputs, names[:1]) == f"{names[1]} was not among its inputs"
    assert compare(inputs[:1], names) == f"{names[1]} was among its inputs"
    assert compare(inputs, names[::-1]) == "its inputs came in another order"
    (tmp_path / "b.txt").write_text("other")
    assert compare(inputs, names) == f"{names[1]} changed"
