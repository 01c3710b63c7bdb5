"""Dataclasses that are quick to define: their methods are shared, not compiled for each class.

`dataclasses.dataclass` generates up to six functions as text and compiles them, 0.6 ms a class in
Python 3.11; a command defines some sixty classes before it starts. Here the standard library finds
the fields and sets their defaults, and shared methods use these fields. The functions of the
standard library work (`fields`, `replace`, `asdict`, patterns), and so do copies and pickles.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import MISSING
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

__all__ = ["dataclass"]

ClassT = TypeVar("ClassT", bound=type)
_set = object.__setattr__


@overload
def dataclass(cls: ClassT, /) -> ClassT: ...
@overload
def dataclass(*, frozen: bool = False, kw_only: bool = False) -> Callable[[ClassT], ClassT]: ...
@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    cls: ClassT | None = None, /, *, frozen: bool = False, kw_only: bool = False
) -> ClassT | Callable[[ClassT], ClassT]:
    """A class decorator, used like `dataclasses.dataclass`.

    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1, y=0), dataclasses.replace(Point(1), y=2).y
    (Point(x=1, y=0), True, 2)
    """

    def decorate(cls: ClassT) -> ClassT:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else it computes a signature for it
        find_fields = dataclasses.dataclass(
            init=False,
            repr=False,
            eq=False,
            frozen=frozen and any(map(_is_frozen, cls.__bases__)),  # it compiles two functions
            kw_only=kw_only,
        )
        for name, method in _methods(find_fields(cls), frozen=frozen).items():
            if cls.__dict__.get(name) is None:  # methods of the class itself are kept
                setattr(cls, name, method)
        said = cls.__dataclass_params__  # for the standard library and tyro
        said.init = said.repr = said.eq = True
        said.frozen = frozen
        return cls

    return decorate if cls is None else decorate(cls)


def _is_frozen(cls: type[Any]) -> bool:
    return dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # pyright: ignore


def _methods(cls: type[Any], *, frozen: bool) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    compared = _values_getter([field.name for field in fields if field.compare])

    def equals(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or compared(self) == compared(other)

    def hash_fields(self: Any) -> int:
        return hash(compared(self))

    methods: dict[str, Any] = {
        "__init__": _initializer(cls),
        "__signature__": _Signature(),
        "__repr__": _represent,
        "__eq__": equals,
        "__hash__": None,
    }
    if frozen:
        methods |= {"__hash__": hash_fields, "__setattr__": _refuse, "__delattr__": _refuse}
    return methods


def _initializer(cls: type[Any]) -> Callable[..., None]:
    """The `__init__` of a class with these fields."""
    fields = dataclasses.fields(cls)
    options = frozenset(field.name for field in fields if field.init)
    places = tuple(field.name for field in fields if field.init and not field.kw_only)
    defaults = {field.name: field.default for field in fields}
    factories = [
        (field.name, field.default_factory)
        for field in fields
        if field.default_factory is not MISSING
    ]
    has_more = hasattr(cls, "__post_init__")

    def initialize(self: Any, *args: Any, **given: Any) -> None:
        placed = dict(zip(places, args, strict=False))
        if len(placed) < len(args) or not options.issuperset(given):
            _refuse_call(cls, args, given)
        if placed and not placed.keys().isdisjoint(given):
            _refuse_call(cls, args, given)
        values = defaults | placed | given
        for name, make in factories:
            if values[name] is MISSING:
                values[name] = make()
        for name, value in values.items():
            if value is not MISSING:
                _set(self, name, value)
            elif name in options:
                _refuse_call(cls, args, given)
        if has_more:
            self.__post_init__()

    initialize.__name__, initialize.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    return initialize


def _values_getter(names: list[str]) -> Callable[[Any], Any]:
    """A function that returns the values of these attributes as a comparable object."""
    return attrgetter(*names) if names else lambda value: ()


def _represent(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_call(cls: type[Any], args: tuple[Any, ...], given: dict[str, Any]) -> NoReturn:
    """Raise the TypeError of a call that does not match the signature."""
    try:
        inspect.signature(cls).bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None
    raise AssertionError("a call that fits was refused")


class _Signature:
    """The signature of a class, for help() and notebooks; made on access."""

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        accepted = [field for field in dataclasses.fields(owner) if field.init]
        parameters = [_parameter(field) for field in accepted]
        return inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kinds = inspect.Parameter
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return kinds(
        field.name,
        kinds.KEYWORD_ONLY if field.kw_only else kinds.POSITIONAL_OR_KEYWORD,
        default=kinds.empty if default is MISSING else default,
        annotation=field.type,
    )
