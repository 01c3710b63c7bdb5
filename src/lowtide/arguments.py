"""Parse arguments into settings; flags override the config file, a preset, and the defaults.

In:      a settings dataclass, and the words after the verb
Out:     an instance of it; flagerrors.py explains words that tyro refuses
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args

from lowtide.aliases import other_way, own_name
from lowtide.counts import counted
from lowtide.errors import UsageError, printable
from lowtide.flags import (
    flag_name,
    gather_flags,
    positional_names,
    read_int,
    read_path,
    read_plain_flags,
    repeat_flags,
    spell_switches,
    stray_word,
)
from lowtide.flatsettings import groups_of, note_left_out, setting_fields
from lowtide.settings import give_way, is_built_in, nearest_name, read_config_file, read_preset

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

__all__ = ["common_flags", "parse_settings"]

_NAMING_FLAGS = {"--language-model", "--score", "--step"}


def parse_settings(
    cls: type[Any], words: list[str], *, program: str, summary: str, examples: Sequence[str] = ()
) -> Any:
    """Create settings of the class; `program`, `summary` and `examples` are for its help."""
    names = setting_fields(cls)
    words = _place_positionals(cls, _rename_flags(words, names))
    words = gather_flags(cls, repeat_flags(cls, words))
    if "--help-all" in words or "--help" in words or "-h" in words:
        _print_help(cls, program, summary, examples, whole="--help-all" in words)
        raise SystemExit(0)
    _refuse_near_miss(cls, words)
    _refuse_empty_names(words)
    config_path: str | None = None
    if "config_file" not in names:
        config_path, words = _take_word(words, "--config-file")
    if "debug" not in names:  # else --debug is the verb's own setting
        words = [word for word in words if word != "--debug"]
    options: dict[str, Any] = {}
    if hasattr(cls, "presets_dir"):
        preset, words = _take_word(words, "--preset")
        options = {} if preset is None else read_preset(preset, for_settings=cls)
    supplied = {*options}
    if config_path is not None:
        config = read_config_file(Path(config_path), for_settings=cls)
        supplied = supplied | {*config} if is_built_in(config_path, cls) else supplied - {*config}
        options = give_way(cls, options, config) | config
    named = _named(words, names)
    options = give_way(cls, options, named)
    settings = read_plain_flags(cls, words) if not options else None
    if settings is not None:
        return settings
    _refuse_stray_word(cls, words, options, program=program)
    _refuse_misspelt(cls, words, options)
    settings = _parse_by_tyro(cls, words, options, program=program, summary=summary)
    return note_left_out(settings, {*options, *named}, supplied=(supplied & {*options}) - named)


def _refuse_empty_names(words: Sequence[str]) -> None:
    """Refuse a model or command named by an empty word, which would switch it off silently."""
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        name, has_value, value = word.partition("=")
        flag = name.replace("_", "-")
        if flag in _NAMING_FLAGS and not (value if has_value else after):
            raise UsageError(
                f"{flag} is '', expected a name",
                next_step=f"is a variable of the shell empty? without {flag} nothing is used",
            )


def _print_help(
    cls: type[Any], program: str, summary: str, examples: Sequence[str], *, whole: bool
) -> None:
    from lowtide.helptext import describe_verb

    print(
        describe_verb(
            cls,
            program=program,
            summary=summary,
            examples=examples,
            also=common_flags(cls),
            whole=whole,
        )
    )


def _parse_by_tyro(
    cls: type[Any], words: list[str], options: dict[str, Any], *, program: str, summary: str
) -> Any:
    """Parse flags, which override a preset and a config file; errors are explained."""
    import tyro  # slow to import, and plain flags need none of it

    from lowtide.flagerrors import explain_flags

    default: Any = tyro.MISSING_NONPROP
    if options:
        default = _partial_settings(cls, options, missing=tyro.MISSING)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return tyro.cli(
                cls,
                args=spell_switches(cls, words),
                config=(tyro.conf.OmitArgPrefixes,),  # flags have no group in their names
                default=default,
                prog=program,
                description=f"{summary}.",
                registry=_plain_values(),
            )
    except SystemExit:
        error = explain_flags(cls, words, options, program=program)
        if error is not None:
            raise error from None
        sys.stderr.write(printable(said.getvalue()))  # it quotes the user's words
        raise


def common_flags(cls: type[Any]) -> str:
    """The flags that every verb has besides its settings, for its help."""
    names = setting_fields(cls)
    flags: list[str] = []
    if "config_file" not in names:
        flags.append("--config-file FILE (JSON, TOML or YAML; flags override it)")
    if hasattr(cls, "presets_dir"):
        flags.append("--preset NAME (settings that belong together; file and flags override it)")
    flags += ["--json (the result as an object)", "--quiet (no progress)"]
    if "debug" not in names:
        flags.append("--debug (traceback on error)")
    return ", ".join(flags)


def _plain_values() -> ConstructorRegistry:
    """Make tyro show optional numbers and paths without None (`INT`, not `{None}|INT`), and read
    1e6."""
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
    )

    readers: dict[Any, tuple[str, Callable[[str], Any]]] = {
        str: ("TEXT", str),
        Path: ("PATH", read_path),
        int: ("INT", read_int),
        float: ("FLOAT", float),
    }

    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        is_union = info.type_origin in (Union, types.UnionType)
        choices: set[Any] = set(get_args(info.type)) if is_union else {info.type}
        choices -= {type(None)}
        if choices == {str, int}:  # a size, read as it was written
            choices = {str}
        if len(choices) != 1 or not choices <= readers.keys():
            return None
        (kind,) = choices
        metavar, read = readers[kind]
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: value is None or isinstance(value, (kind, int)),
            str_from_instance=lambda value: ["none" if value is None else str(value)],
        )

    registry = ConstructorRegistry()
    registry.primitive_rule(rule)
    return registry


def _rename_flags(words: list[str], known: Collection[str]) -> list[str]:
    """Replace flags by the verb's own names of the same settings."""
    renamed: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name in known:
            renamed.append(word)
            continue
        instead = other_way(name, known)
        if instead is not None:
            raise UsageError(f"there is no flag {flag}", next_step=instead)
        off = "no_" if name.startswith("no_") else ""
        ours = off + own_name(name.removeprefix(off), known)
        renamed.append(word if ours == name else f"{flag_name(ours)}{equals}{value}")
    return renamed


def _refuse_near_miss(cls: type[Any], words: list[str]) -> None:
    """Name the flag beside the settings that a word nearly is: tyro knows the settings alone."""
    beside = _flags_beside(cls)
    for flag, nearest in _near_misses(cls, words):
        if nearest in beside:
            raise UsageError(f"there is no flag {flag}", next_step=f"did you mean {nearest}?")


def _refuse_misspelt(cls: type[Any], words: list[str], options: Collection[str]) -> None:
    """Name the flags that words nearly are where one is missing: tyro says that one is missing."""
    missing = _missing_flags(cls, words, options)
    found = list(_near_misses(cls, words)) if missing else []
    if not found:
        return
    places = {flag_name(name) for name in positional_names(cls)}
    needed = [flag for flag in missing if flag not in places]
    also = f", and {' and '.join(needed)} {'is' if len(needed) == 1 else 'are'} missing"
    flags = " or ".join(flag for flag, _ in found)
    meant = " and ".join(nearest for _, nearest in found)
    raise UsageError(
        f"there is no flag {flags}{also if needed else ''}", next_step=f"did you mean {meant}?"
    )


def _flags_beside(cls: type[Any]) -> list[str]:
    """The flags that a verb has beside its settings."""
    flags = ["--json", "--quiet", *(["--preset"] if hasattr(cls, "presets_dir") else [])]
    return flags + (["--config-file"] if "config_file" not in setting_fields(cls) else [])


def _near_misses(cls: type[Any], words: list[str]) -> Iterator[tuple[str, str]]:
    """Flags that the verb does not have, each with the one of its own that it nearly is."""
    guides: Mapping[str, str] = getattr(cls, "flag_words", {})
    own = [flag_name(name) for name in (*setting_fields(cls), *guides.values())]
    beside = _flags_beside(cls)
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        known = flag in {*own, *beside} or "--" + flag.removeprefix("--no-") in own
        if known or not flag.startswith("--"):
            continue
        switches = ["--no-" + name[2:] for name in own] if flag.startswith("--no-") else []
        candidates = [*beside, *own, *switches]
        if nearest := nearest_name(flag, candidates, likeness=0.8):
            yield flag, nearest


def _named(words: list[str], known: Collection[str]) -> set[str]:
    """The settings that flags set or turn off."""
    flags = {word.partition("=")[0][2:].replace("-", "_") for word in words if word[:2] == "--"}
    return {name if name in known else name.removeprefix("no_") for name in flags}


def _place_positionals(cls: type[Any], words: list[str]) -> list[str]:
    """Move values given by flag to the front, if the verb takes them by position."""
    positional = positional_names(cls)
    flags = {flag_name(name): name for name in positional}
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    current: list[str] = rest
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = flags.get(flag.replace("_", "-"))
            current = rest if name is None else given.setdefault(name, [])
            if name is None:
                current.append(word)
            elif equals:
                current.append(value)
        else:
            current.append(word)
    if not given:
        return words
    first = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    placed, others = rest[:first], rest[first:]
    for at, name in enumerate(positional):
        if name in given:
            placed[at:at] = given[name]
    return [*placed, *others]


def _refuse_stray_word(
    cls: type[Any], words: list[str], options: Collection[str], *, program: str
) -> None:
    """The error for `lowtide prepare notes.txt`, which names the missing flag."""
    stray = stray_word(cls, words)
    if stray is None:
        return
    places = positional_names(cls)
    if places:
        takes = counted(len(places), "value")
        raise UsageError(
            f"{stray!r} is one too many: {program} takes {takes} by position",
            next_step=f"give the command once for each of them, or see {program} --help",
        )
    missing = _missing_flags(cls, words, options)
    hint = f" ({missing[0]} is missing)" if missing else ""
    raise UsageError(
        f"{stray!r} stands after no flag, so {program} cannot know what it is",
        next_step=f"put its flag before it{hint}; {program} --help lists them",
    )


def _missing_flags(cls: type[Any], words: list[str], options: Collection[str]) -> list[str]:
    """The flags that have to be given and are not; what is given by position is among them."""
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    given |= {flag_name(name) for name in options}
    return [
        flag_name(name)
        for name, field in setting_fields(cls).items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if flag_name(name) not in given
    ]


def _take_word(words: list[str], wanted: str) -> tuple[str | None, list[str]]:
    """Take `--wanted VALUE` out of the arguments."""
    found: str | None = None
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") != wanted:
            rest.append(word)
            continue
        if found is not None:
            raise UsageError(f"{wanted} is given twice", next_step=f"give one {wanted}")
        found = value if equals else next(remaining, "")
        if not found:
            raise UsageError(f"{wanted} needs a value", next_step=f"{wanted} NAME")
    return found, rest


def _partial_settings(cls: type[Any], options: dict[str, Any], *, missing: object) -> Any:
    """Return an instance that holds `options` and defaults, and `missing` for what has neither.

    Its checks (`__post_init__`) do not run: they belong to the whole settings, which tyro makes.
    """
    settings, groups = object.__new__(cls), groups_of(cls)
    for field in dataclasses.fields(cls):
        value = missing
        if field.name in groups:
            value = _partial_settings(groups[field.name], options, missing=missing)
        elif field.name in options:
            value = options[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(settings, field.name, value)
    return settings
