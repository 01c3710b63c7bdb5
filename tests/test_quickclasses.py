"""Dataclasses of lowtide.quickclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from lowtide import quickclasses


def define(decorator: Any) -> dict[str, type[Any]]:
    """The same classes by another decorator."""

    @decorator(frozen=True)
    class Point:
        x: int
        y: int = 0
        seen: ClassVar[int] = 7
        marks: tuple[int, ...] = dataclasses.field(default_factory=tuple)
        note: str = dataclasses.field(default="", compare=False, repr=False)

    @decorator
    class Counter:
        count: int = 0
        names: list[str] = dataclasses.field(default_factory=list)
        done: bool = dataclasses.field(init=False, compare=False, repr=False)

    @decorator(frozen=True, kw_only=True)
    class Named:
        name: str
        size: int = 1

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError(f"size is {self.size}")

    @decorator(frozen=True)
    class Deeper(Point):
        z: int = 3

        def __repr__(self) -> str:
            return "deeper"

    @decorator(frozen=True)
    class Empty:
        pass

    return {made.__name__: made for made in (Point, Counter, Named, Deeper, Empty)}


OURS, THEIRS = define(quickclasses.dataclass), define(dataclasses.dataclass)

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 2, (3,), "n"), {}),
    ("Point", (), {"y": 5, "x": 4}),
    ("Counter", (), {}),
    ("Counter", (3,), {"names": ["a"]}),
    ("Named", (), {"name": "n"}),
    ("Deeper", (1, 2), {"z": 9}),
    ("Empty", (), {}),
]
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (), {}),
    ("Point", (1, 2, (), "", 5), {}),
    ("Point", (1,), {"x": 2}),
    ("Point", (1,), {"seen": 2}),
    ("Point", (1,), {"other": 2}),
    ("Counter", (), {"done": True}),
    ("Named", ("n",), {}),
    ("Named", (), {"size": 2}),
    ("Empty", (1,), {}),
]


@pytest.mark.parametrize(("name", "args", "given"), CALLS)
def test_instances_are_as_those_of_the_standard_library(
    name: str, args: tuple[Any, ...], given: dict[str, Any]
) -> None:
    ours, theirs = OURS[name](*args, **given), THEIRS[name](*args, **given)
    assert repr(ours) == repr(theirs)
    assert list(vars(ours)) == list(vars(theirs))
    assert list(vars(ours).values()) == list(vars(theirs).values())
    assert ours == OURS[name](*args, **given)
    assert ours != theirs
    if name != "Counter":
        assert hash(ours) == hash(theirs)
        assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)


@pytest.mark.parametrize(("name", "args", "given"), REFUSED)
def test_calls_that_do_not_fit_are_refused(
    name: str, args: tuple[Any, ...], given: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        THEIRS[name](*args, **given)
    with pytest.raises(TypeError, match=f"^{name}: "):
        OURS[name](*args, **given)


@pytest.mark.parametrize("name", list(OURS))
def test_classes_say_of_themselves_what_those_of_the_standard_library_say(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert dataclasses.is_dataclass(ours)
    assert [field.name for field in dataclasses.fields(ours)] == [
        field.name for field in dataclasses.fields(theirs)
    ]
    assert vars(ours).get("__match_args__") == vars(theirs).get("__match_args__")
    parameters = [inspect.signature(made).parameters.values() for made in (ours, theirs)]
    shown = [[(one.name, one.kind, one.annotation) for one in each] for each in parameters]
    assert shown[0] == shown[1]


def test_signatures_have_the_defaults() -> None:
    assert str(inspect.signature(OURS["Point"])) == (
        "(x: 'int', y: 'int' = 0, marks: 'tuple[int, ...]' = (), note: 'str' = '')"
    )


def test_what_is_compared() -> None:
    point = OURS["Point"]
    assert point(1, note="a") == point(1, note="b")
    assert len({point(1, note="a"), point(1, note="b"), point(2)}) == 2
    assert point(1) != point(1, 1)
    assert point(1) != (1, 0, ())
    assert point(1) != OURS["Deeper"](1)


def test_frozen_ones_do_not_change_and_others_do() -> None:
    point = OURS["Point"](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x
    counter = OURS["Counter"]()
    counter.count += 1
    assert counter.count == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_every_instance_has_values_of_its_own() -> None:
    first, second = OURS["Counter"](), OURS["Counter"]()
    first.names.append("a")
    assert second.names == []


def test_values_are_checked_by_the_class() -> None:
    with pytest.raises(ValueError, match="size is -1"):
        OURS["Named"](name="n", size=-1)
    with pytest.raises(ValueError, match="size is -1"):
        dataclasses.replace(OURS["Named"](name="n"), size=-1)


@quickclasses.dataclass(frozen=True)
class Pickled:
    """Found by its name."""

    value: int
    names: tuple[str, ...] = ()


def test_copies_and_pickles() -> None:
    made = Pickled(1, ("a",))
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert dataclasses.replace(made, value=2) == Pickled(2, ("a",))


def test_classes_of_both_kinds_follow_from_each_other() -> None:
    @dataclasses.dataclass(frozen=True)
    class Theirs(Pickled):
        more: int = 0

    @quickclasses.dataclass(frozen=True)
    class Ours(Theirs):
        most: int = 0

    made = Ours(1, ("a",), 2, most=3)
    assert dataclasses.astuple(made) == (1, ("a",), 2, 3)
    assert made == Ours(1, ("a",), 2, 3) != Theirs(1, ("a",), 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.more = 4  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="non-frozen"):
        quickclasses.dataclass(type("Changing", (Pickled,), {}))


def test_documentation_stays() -> None:
    assert Pickled.__doc__ == "Found by its name."
    assert OURS["Empty"].__doc__ == "Empty"


def test_patterns() -> None:
    match Pickled(1, ("a",)):
        case Pickled(value, (name,)):
            assert (value, name) == (1, "a")
        case _:
            pytest.fail("not matched")
