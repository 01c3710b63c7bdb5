"""Shell completion scripts for verbs, flags and their choices.

In:      the verbs with their summaries and settings
Out:     a script for bash, zsh or fish

The scripts contain every flag, so that completing a word starts no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lowtide.flags import flag_name
from lowtide.helptext import Flag, flags_of
from lowtide.keywords import takes_keywords
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = ["COMMON_FLAGS", "CompletionSettings", "completion_script", "shell_completion"]

COMMON_FLAGS = ("--config-file", "--debug", "--help", "--help-all", "--json", "--quiet")
"""The flags of every verb besides its settings."""


@dataclass(frozen=True)
class CompletionSettings:
    """Which shell to write a script for."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """bash, zsh or fish."""


@takes_keywords(CompletionSettings)
def shell_completion(settings: CompletionSettings) -> str:
    """Return a script that lets a shell complete the verbs and flags of `lowtide`."""
    from lowtide.verbs import VERBS  # which has this among its verbs

    verbs = {name: (verb.summary, verb.settings_class()) for name, verb in VERBS.items()}
    return completion_script(settings.shell, verbs)


def completion_script(shell: str, verbs: Mapping[str, tuple[str, type[Any]]]) -> str:
    """Return the script; `verbs` are summaries and settings classes by name."""
    flags = {name: [*flags_of(cls), *_presets(cls)] for name, (_, cls) in verbs.items()}
    if shell == "fish":
        return _fish_script({name: summary for name, (summary, _) in verbs.items()}, flags)
    script = _bash_script(flags)
    if shell == "zsh":  # which takes completions written for bash
        return "#compdef lowtide\nautoload -U +X bashcompinit && bashcompinit\n" + script
    return script


def _presets(cls: type[Any]) -> list[Flag]:
    """The flag that names a preset, if the verb has one."""
    if not hasattr(cls, "presets_dir"):
        return []
    names = sorted(path.stem for path in cls.presets_dir.glob("*.json"))
    return [Flag("preset", "", "Settings that belong together.", "NAME", choices=tuple(names))]


def _words(flags: list[Flag]) -> list[str]:
    """Every flag of a verb as it can be typed."""
    words = {*COMMON_FLAGS}
    for flag in flags:
        if flag.positional:
            continue
        words.add(flag_name(flag.name))
        if not flag.metavar:
            words.add("--no-" + flag_name(flag.name)[2:])
    return sorted(words)


def _bash_script(flags: Mapping[str, list[Flag]]) -> str:
    choices: list[str] = []
    for verb, rows in flags.items():
        for flag in rows:
            if flag.choices:
                before = verb if flag.positional else flag_name(flag.name)
                reply = f"_lowtide_reply {' '.join(flag.choices)}; return"
                choices.append(f'    "{verb} {before}") {reply} ;;')
    lines = [
        "# lowtide's verbs, flags and their choices; where nothing of these fits, names of files.",
        "_lowtide_reply() {",
        '  COMPREPLY=($(compgen -W "$*" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        "_lowtide() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local verb="${COMP_WORDS[1]}"',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f"    _lowtide_reply {' '.join([*flags, '--help', '--version'])}; return",
        "  fi",
        '  case "$verb $before" in',
        *choices,
        "  esac",
        '  case "$word" in -*) ;; *) return ;; esac',
        '  case "$verb" in',
        *(
            f"    {verb}) _lowtide_reply {' '.join(_words(rows))} ;;"
            for verb, rows in flags.items()
        ),
        "  esac",
        "}",
        "complete -o default -F _lowtide lowtide",
    ]
    return "\n".join(lines)


def _fish_script(summaries: Mapping[str, str], flags: Mapping[str, list[Flag]]) -> str:
    lines = ["# lowtide's verbs, flags and their choices."]
    for verb, summary in summaries.items():
        first = f"complete -c lowtide -n __fish_use_subcommand -x -a {verb}"
        lines.append(f"{first} -d {shlex.quote(summary)}")
        seen = f"complete -c lowtide -n '__fish_seen_subcommand_from {verb}'"
        described = {flag_name(flag.name): flag for flag in flags[verb] if not flag.positional}
        lines += [
            f"{seen} -x -a {shlex.quote(' '.join(flag.choices))}"
            for flag in flags[verb]
            if flag.positional and flag.choices
        ]
        for word in _words(flags[verb]):
            flag = described.get(word)
            line = f"{seen} -l {word[2:]}"
            if flag is not None and flag.choices:
                line += f" -x -a {shlex.quote(' '.join(flag.choices))}"
            elif (flag is not None and flag.metavar) or word == "--config-file":
                line += " -r"
            if flag is not None and flag.help:
                line += f" -d {shlex.quote(flag.help.split('; ')[0].rstrip('.'))}"
            lines.append(line)
    return "\n".join(lines)
