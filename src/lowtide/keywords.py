"""A decorator by which a function of settings also accepts them as keywords.

In:      a function of one argument, a settings dataclass
Out:     the same function, called with settings or with the names of their fields

All public functions support `prepare_dataset(settings)`, `prepare_dataset(out_dir=…)`,
`verify_dataset("data/books")` (the verb's positional settings) and `progress=False` for silence.
signatures.py generates the signatures for help() and type checkers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from lowtide.answers import is_quiet, shown_as, wants_json
from lowtide.errors import UsageError
from lowtide.flags import positional_names
from lowtide.flatsettings import limit_names
from lowtide.memory import PeakMeter
from lowtide.settings import build_settings

__all__ = ["PublicFunction", "takes_keywords"]

SettingsT = TypeVar("SettingsT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class PublicFunction(Protocol, Generic[ResultT_co]):
    """A function that takes settings, or their fields by name."""

    def __call__(self, *given: Any, progress: bool = True, **options: Any) -> ResultT_co:
        """Call it; `progress=False` leaves out progress and notices."""
        ...


def takes_keywords(
    cls: type[SettingsT],
) -> Callable[[Callable[[SettingsT], ResultT]], PublicFunction[ResultT]]:
    """Decorate a function to accept the fields of `cls` as keywords.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     width: int = 1
    >>> @takes_keywords(Settings)
    ... def double(settings: Settings) -> int:
    ...     return 2 * settings.width
    >>> double(width=4), double(Settings(5))
    (8, 10)
    """

    def decorate(function: Callable[[SettingsT], ResultT]) -> PublicFunction[ResultT]:
        name = function.__name__

        @functools.wraps(function)
        def called(*given: Any, progress: bool = True, **options: Any) -> Any:
            settings = _settings_of(cls, name, given, options)
            shown = shown_as(as_json=wants_json(), quiet=is_quiet() or not progress)
            with PeakMeter(), shown:  # from here on, even if its progress begins later
                return function(settings)

        @functools.wraps(function)
        def iterated(*given: Any, progress: bool = True, **options: Any) -> Iterator[Any]:
            settings = _settings_of(cls, name, given, options)
            return _silenced(cast("Iterator[Any]", function(settings)), quiet=not progress)

        public = iterated if inspect.isgeneratorfunction(function) else called
        public.settings_class = cls  # pyright: ignore[reportAttributeAccessIssue]
        return public  # pyright: ignore[reportReturnType]

    return decorate


def _settings_of(
    cls: type[SettingsT], name: str, given: tuple[Any, ...], options: dict[str, Any]
) -> SettingsT:
    """The settings of a call; errors in the call itself are TypeErrors, as usual."""
    first = given[0] if given else None
    if given and (first is None or isinstance(first, cls)):
        if len(given) > 1 or (first is not None and options):
            raise UsageError(f"{name} takes settings or keywords, not both")
        return build_settings(cls, options) if first is None else first
    places = positional_names(cls)
    if len(given) > len(places):
        most = f"{', '.join(places)} by position" if places else "keywords"
        raise TypeError(f"{name}() takes {cls.__name__} or {most}, and {len(given)} were given")
    placed = dict(zip(places, given, strict=False))
    for twice in placed.keys() & options.keys():
        raise TypeError(f"{name}() got two values for {twice!r}")
    limits = {limit: options.pop(limit) for limit in limit_names(cls) if limit in options}
    settings = build_settings(cls, {**placed, **options})
    return dataclasses.replace(settings, **limits) if limits else settings  # pyright: ignore[reportArgumentType, reportCallIssue]


def _silenced(values: Iterator[Any], *, quiet: bool) -> Iterator[Any]:
    """The same values, with progress shown or hidden only while each of them is computed: other
    code may run in between, with its own setting."""
    while True:
        with shown_as(as_json=wants_json(), quiet=is_quiet() or quiet):
            try:
                value = next(values)
            except StopIteration:
                return
        yield value
