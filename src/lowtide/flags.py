"""Parse plain flags into settings in a millisecond, and format settings as flags.

In:      a settings dataclass, and the words after the verb; settings or options (writing)
Out:     an instance of it; None if a word is not a known flag with a valid value

tyro, which reads all other words, takes 0.15 s to import and set up, as long as everything else
before the work starts. So it is only used if there is an error to explain, and for the few types of
fields that are not parsed here.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from lowtide.counts import read_int
from lowtide.flatsettings import from_flat, setting_fields, setting_values
from lowtide.quickclasses import dataclass

__all__ = [
    "flag_name",
    "gather_flags",
    "path_word",
    "positional_names",
    "read_int",
    "read_path",
    "read_plain_flags",
    "repeat_flags",
    "settings_as_flags",
    "spell_switches",
    "stray_word",
    "write_flags",
]

_POSITIONAL = "Annotated[", ", tyro.conf.Positional]"
_MANY = "tuple[", ", ...]"
_WORDS = "Literal[", "]"
_OPEN_SWITCH, _TRUTHS = "bool | None", ("True", "False", "None")
_REPEATED = "UseAppendAction"  # a flag that is repeated for each of its values


def read_path(word: str) -> Path:
    """Read a path; an empty word, which pathlib reads as the current folder, is refused.

    A shell leaves ~ as it is in --out-dir=~/data, as do config files; a folder of that name would
    be made.
    """
    if not word or "\0" in word:
        raise ValueError(f"{word!r} names no file or folder")
    return Path(os.path.expanduser(word))  # noqa: PTH111 - pathlib reads ./~ as ~


def path_word(path: str | Path) -> str:
    """A path as a word of a command: quoted where needed, and never taken for a flag.

    >>> path_word("data/my books"), path_word("-mine")
    ("'data/my books'", './-mine')
    """
    word = str(path)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)


def flag_name(name: str) -> str:
    """The flag of a setting.

    >>> flag_name("out_dir")
    '--out-dir'
    """
    return "--" + name.replace("_", "-")


def write_flags(options: Mapping[str, Any]) -> list[str]:
    """The command-line words for these options; those that are None are omitted.

    >>> write_flags({"input": ["a.txt", "b.txt"], "resume": False, "seed": None, "seq_len": 8})
    ['--input', 'a.txt', 'b.txt', '--no-resume', '--seq-len', '8']
    """
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(flag_name(name) if value else "--no-" + flag_name(name)[2:])
        elif isinstance(value, list | tuple):
            words += [flag_name(name), *map(str, cast("list[Any]", value))]
        elif value is not None:
            words += [flag_name(name), str(value)]
    return words


def settings_as_flags(
    settings: Any, *, leave_out: Collection[str] = (), spell_out: Collection[str] = ()
) -> list[str]:
    """The command-line words for these settings, without those that have default values.

    Those of `spell_out` are there whatever they are: a resumed run does not have defaults.

    >>> @dataclass
    ... class Settings:
    ...     name: str
    ...     fast: bool = True
    >>> settings_as_flags(Settings("a b", fast=False))
    ['--name', 'a b', '--no-fast']
    """
    words: list[str] = []
    fields = setting_fields(type(settings))
    for name, value in setting_values(settings).items():
        field = fields[name]
        if name in leave_out or (value == field.default and name not in spell_out):
            continue
        if _REPEATED in str(field.type):
            words += [word for item in value for word in write_flags({name: item})]
        else:
            words += write_flags({name: value})
    return words


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "Path": read_path,
    "int": read_int,
    "float": float,
}


@dataclass(frozen=True)
class _Field:
    name: str
    kind: str
    positional: bool
    many: bool

    @property
    def read(self) -> Callable[[str], Any] | None:
        if self.kind.startswith(_WORDS[0]) and self.kind.endswith(_WORDS[1]):
            return self._read_choice
        return _READERS.get(self.kind)

    def _read_choice(self, word: str) -> str:
        """Read one of the listed words; ValueError for any other."""
        choices = self.kind.removeprefix(_WORDS[0]).removesuffix(_WORDS[1]).split(", ")
        if repr(word) not in choices:
            raise ValueError(word)
        return word


def _describe(field: dataclasses.Field[Any]) -> _Field:
    """Read a field's kind from the text of its annotation, without imports."""
    kind = field.type if isinstance(field.type, str) else ""
    positional = kind.startswith(_POSITIONAL[0]) and kind.endswith(_POSITIONAL[1])
    if positional:
        kind = kind.removeprefix(_POSITIONAL[0]).removesuffix(_POSITIONAL[1])
    kind = kind.removesuffix(" | None")
    many = kind.startswith(_MANY[0]) and kind.endswith(_MANY[1])
    if many:
        kind = kind.removeprefix(_MANY[0]).removesuffix(_MANY[1])
    return _Field(field.name, kind, positional, many)


def positional_names(cls: type[Any]) -> list[str]:
    """The settings that are given by position, in order."""
    described = map(_describe, setting_fields(cls).values())
    return [field.name for field in described if field.positional]


def stray_word(cls: type[Any], words: list[str]) -> str | None:
    """The first excess positional word: before any flag, beyond the verb's positional settings.

    >>> @dataclass
    ... class Settings:
    ...     size: int
    >>> stray_word(Settings, ["notes.txt", "--size", "1"])
    'notes.txt'
    """
    positional = [
        field for field in map(_describe, setting_fields(cls).values()) if field.positional
    ]
    if any(field.many for field in positional):
        return None
    before = next(_group(words), (None, []))[1]
    return before[len(positional)] if len(before) > len(positional) else None


def repeat_flags(cls: type[Any], words: list[str]) -> list[str]:
    """The words with repeated flags written before each of their values.

    >>> @dataclass
    ... class Settings:
    ...     tasks: "Annotated[tuple[str, ...], tyro.conf.UseAppendAction]" = ()
    >>> repeat_flags(Settings, ["--tasks", "a", "b", "--quiet"])
    ['--tasks', 'a', '--tasks', 'b', '--quiet']
    """
    repeated = {
        flag_name(name)
        for name, field in setting_fields(cls).items()
        if _REPEATED in str(field.type)
    }
    found: list[str] = []
    flag, num_given = "", 0
    for word in words:
        if word.startswith("-"):
            flag, num_given = word.replace("_", "-"), 0
        else:
            if flag in repeated and num_given > 0:
                found.append(flag)
            num_given += 1
        found.append(word)
    return found


def gather_flags(cls: type[Any], words: list[str]) -> list[str]:
    """The words with all values of a flag that takes several behind its first occurrence.

    Otherwise the last of `--input-files a --input-files b` would be the only one.

    >>> @dataclass
    ... class Settings:
    ...     input: tuple[str, ...]
    >>> gather_flags(Settings, ["--input", "a", "--json", "--input=b"])
    ['--input', 'a', 'b', '--json']
    """
    described = map(_describe, setting_fields(cls).values())
    many = {flag_name(field.name) for field in described if field.many and not field.positional}
    first: dict[str, list[str]] = {}
    current: list[str] = []
    groups = [current]
    for word in words:
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if not word.startswith("--"):
            current.append(word)
        elif flag in first and not value.startswith("-"):
            current = first[flag]
            current += [value] if equals else []
        else:
            takes_more = flag in many and not value.startswith("-")
            current = [name, value] if equals and takes_more else [word]
            groups.append(current)
            if takes_more:
                first[flag] = current
    return list(itertools.chain.from_iterable(groups))


def spell_switches(cls: type[Any], words: list[str]) -> list[str]:
    """The words with an explicit value after each optional switch, which tyro needs.

    >>> @dataclass
    ... class Settings:
    ...     fast: bool | None = None
    >>> spell_switches(Settings, ["--fast", "--no-fast", "--fast", "False"])
    ['--fast', 'True', '--fast', 'False', '--fast', 'False']
    """
    fields = setting_fields(cls).items()
    open_flags = {flag_name(name) for name, field in fields if field.type == _OPEN_SWITCH}
    found: list[str] = []
    for word, after in itertools.pairwise([*words, "-"]):
        flag = word.replace("_", "-")
        if flag in open_flags and after not in _TRUTHS:
            found += [flag, "True"]
        elif flag.startswith("--no-") and "--" + flag[5:] in open_flags:
            found += ["--" + flag[5:], "False"]
        else:
            found.append(word)
    return found


def read_plain_flags(cls: type[Any], words: list[str]) -> Any | None:
    """Create settings from the words, if all flags and values are plain; else None.

    >>> @dataclass
    ... class Settings:
    ...     size: int
    ...     fast: bool = True
    >>> read_plain_flags(Settings, ["--size", "1e3", "--no-fast"])
    Settings(size=1000, fast=False)
    >>> read_plain_flags(Settings, ["--size", "much"]) is None
    True
    """
    fields = setting_fields(cls)
    try:
        values = _read_words([_describe(field) for field in fields.values()], words)
    except ValueError:
        return None
    for name, field in fields.items():
        has_default = not (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if not has_default and name not in values:
            return None
    return from_flat(cls, values)


def _read_words(fields: list[_Field], words: list[str]) -> dict[str, Any]:
    """Return the values of the given fields; ValueError if a flag or value is not plain."""
    by_flag = {flag_name(field.name): field for field in fields}
    waiting = [field for field in fields if field.positional]
    values: dict[str, Any] = {}
    for flag, given in _group(words):
        if flag is None:
            while given:
                field = waiting.pop(0) if waiting else None
                if field is None or field.read is None:
                    raise ValueError(given[0])
                if field.many:
                    values[field.name] = tuple(map(field.read, given))
                    break
                values[field.name] = field.read(given.pop(0))
            continue
        name, value = _read_flag(by_flag, flag, given)
        if name in values:
            raise ValueError(flag)
        values[name] = value
    return values


def _read_flag(by_flag: dict[str, _Field], flag: str, given: list[str]) -> tuple[str, Any]:
    field = by_flag.get(flag)
    switched_off = by_flag.get("--" + flag.removeprefix("--no-")) if field is None else None
    if switched_off is not None and switched_off.kind == "bool" and not given:
        return switched_off.name, False
    if field is None or field.positional:
        raise ValueError(flag)
    if field.kind == "bool" and not field.many and not given:
        return field.name, True
    if field.read is None or not given or (len(given) > 1 and not field.many):
        raise ValueError(flag)
    return field.name, tuple(map(field.read, given)) if field.many else field.read(given[0])


def _group(words: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Return each flag with the words up to the next one; first those before any, with None."""
    flag: str | None = None
    given: list[str] = []
    for word in words:
        if not word.startswith("-"):
            given.append(word)
            continue
        yield flag, given
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        given = [value] if equals else []
        if not flag.startswith("--"):
            raise ValueError(word)
    yield flag, given
