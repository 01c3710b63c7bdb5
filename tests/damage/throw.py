"""Throw damage at every file that is read and nonsense at every flag; accept only our own answers.

    python tests/damage/throw.py --seconds 600 --seed 1

An answer is right if the command ends with what it ends with for whole files, or with an error of
ours: one that names the next step, and the file where one is damaged, and is not "unexpected". A
command that hangs is wrong too. Everything runs in this process, a blow takes some 20 ms (without a
model).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from damages import FLAG_WORDS, apply_damage, list_damages
from world import BASES, TARGETS, Target, make_world, restore_world, run_command

from lowtide.flatsettings import setting_fields
from lowtide.verbs import VERBS

__all__ = ["Blow", "file_blows", "flag_blows", "strike"]

SECONDS = 30
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COMPARING = ("verify", "convert", "train", "evaluate")
"""What compares the ids that it reads with their checksums."""
_NEEDS_MODEL = ("generate", "evaluate", "export", "train")
# They decide where a command waits, serves or works long, not what it reads.
_LEFT_OUT = {"debug", "watch", "slurm", "memory_profile", "compile", "use_wandb", "measure"}


class Hang(BaseException):
    """No exception that a command could take for an error of the system."""


@dataclasses.dataclass(frozen=True)
class Blow:
    """One command in a world with one thing wrong in it."""

    what: str
    """Damage and file, or flag and word."""
    command: tuple[str, ...]
    target: str = ""
    """The file to damage."""
    damage: str = ""
    seed: int = 0
    strict: bool = False
    again: bool = False
    shards: str = ""
    ids: str = ""

    def __str__(self) -> str:
        return f"{self.what}: lowtide {' '.join(self.command)!r}"


def file_blows(rng: random.Random, *, with_model: bool) -> Iterator[Blow]:
    """Blows at files without end; every target and every kind of damage comes equally often."""
    targets = TARGETS[with_model]
    while True:
        yield _file_blow(rng.choice(targets), rng.choice(list_damages()), rng)


def _file_blow(target: Target, damage: str, rng: random.Random) -> Blow:
    return Blow(
        what=f"{target.path} {damage}",
        command=rng.choice(target.commands),
        target=target.path,
        damage=damage,
        seed=rng.randrange(1 << 32),
        strict=target.strict,
        again=target.again,
        shards=target.shards,
        ids=target.ids,
    )


def every_file_blow(rng: random.Random, *, with_model: bool) -> Iterator[Blow]:
    """Each target with each kind of damage once."""
    for target in TARGETS[with_model]:
        for damage in list_damages():
            yield _file_blow(target, damage, rng)


def flags_of(verb: str) -> list[str]:
    """The flags of a verb, from its settings."""
    module, name = VERBS[verb].settings.split(":")
    settings = getattr(importlib.import_module(module), name)
    return [
        f"--{name.replace('_', '-')}" for name in setting_fields(settings) if name not in _LEFT_OUT
    ]


def flag_blows(verb: str, words: list[str]) -> Iterator[Blow]:
    """A verb's every flag with every word."""
    base = BASES[verb].split()
    for flag in flags_of(verb):
        for word in words:
            command = [*_without(base, flag), flag, word]
            yield Blow(f"{flag} {word!r}", (verb, *command))


def _without(words: list[str], flag: str) -> list[str]:
    """The words without a flag and its values."""
    if flag not in words:
        return words
    at = words.index(flag)
    end = at + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return words[:at] + words[end:]


_WHOLE: set[Path] = set()
"""Copies in which nothing happened: a flag was refused before any work. To copy takes longer."""


def strike(blow: Blow, world: Path, scratch: Path) -> str | None:
    """Deliver one blow in a copy of the world; what is wrong with the answer, or None."""
    place = scratch / "world"
    if place not in _WHOLE:
        restore_world(world, place)
    _WHOLE.discard(place)
    path: Path | None = None
    with contextlib.chdir(place):
        rng = random.Random(blow.seed)
        if blow.target:
            found = sorted(Path().glob(blow.target))
            path = rng.choice(found) if found else None
            if path is None or not apply_damage(blow.damage, path, rng):
                return None
        try:
            with _time_limit(SECONDS):
                code, out, err = run_command(list(blow.command))
        except Hang:
            if not blow.target:  # a number as large as the work it asks for
                return None
            return f"no end after {SECONDS} seconds"
        except BaseException:
            return traceback.format_exc()
        if code == 0 and blow.again and not _is_same(path, world):
            return f"{path} is damaged, and passes as finished\n{out}"
        if code == 0 and blow.shards and _tokens(blow.shards) != _tokens("data"):
            return f"other tokens than without damage to {path}\n{out}"
        if code == 0 and blow.ids and _is_other(Path(blow.ids), world / "a.npy"):
            return f"other ids than without damage to {path}\n{out}"
    if code == 2 and not blow.target:
        _WHOLE.add(place)
    return _judge(blow, code, out, err)


def _is_same(path: Path | None, world: Path) -> bool:
    return path is None or (path.is_file() and path.read_bytes() == (world / path).read_bytes())


def _is_other(path: Path, right: Path) -> bool:
    return path.is_file() and path.read_bytes() != right.read_bytes()


def _tokens(dataset: str) -> list[bytes]:
    """The ids of both splits, however they are cut into shards."""
    return [
        b"".join(path.read_bytes() for path in sorted(Path(dataset, split).glob("*.bin")))
        for split in ("train", "val")
    ]


def _judge(blow: Blow, code: int, out: str, err: str) -> str | None:
    problem = None
    if re.search(r"error: unexpected \w+: ", err) or "Traceback" in err + out:
        problem = "an error that is none of the user's business"
    elif re.search(_CONTROLS, err if blow.command[0] == "generate" else out + err):
        problem = "control characters are printed"
    elif code == 1 and not _says_where_and_how(err, blow):
        problem = "an error without file and next step"
    elif code == 2 and not err.strip():
        problem = "a usage error without a word"
    elif code not in (0, 1, 2):
        problem = f"exit code {code}"
    elif code == 0 and blow.strict and blow.command[0] in _COMPARING:
        problem = "damage that is not noticed"
    return None if problem is None else f"{problem}\n{err[-1500:]}"


def _says_where_and_how(err: str, blow: Blow) -> bool:
    """True if an error names the file, where one is damaged, and what to do next."""
    said = set(re.findall(r"^  (file|next): ", err, re.MULTILINE))
    return "next" in said and ("file" in said or not blow.target)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def expire(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Throw for a while, tell every wrong answer once, and return 1 if there was any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--no-model", dest="with_model", action="store_false")
    parser.add_argument("--only", choices=("files", "flags"), default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    os.environ["COLUMNS"] = "200"
    with tempfile.TemporaryDirectory() as folder:
        world, scratch = Path(folder, "whole"), Path(folder, "scratch")
        world.mkdir()
        scratch.mkdir()
        make_world(world, with_model=options.with_model)
        return _throw(lambda: _blows(rng, options), world, scratch, options.seconds)


def _blows(rng: random.Random, options: argparse.Namespace) -> Iterator[Blow]:
    flags = [
        blow
        for verb in BASES
        if options.with_model or verb not in _NEEDS_MODEL
        for blow in flag_blows(verb, FLAG_WORDS)
    ]
    rng.shuffle(flags)
    files = file_blows(rng, with_model=options.with_model)
    while True:
        if options.only != "files" and flags:
            yield flags.pop()
        if options.only != "flags":
            yield next(files)
        elif not flags:
            return


def _throw(blows: Callable[[], Iterator[Blow]], world: Path, scratch: Path, seconds: float) -> int:
    end = time.monotonic() + seconds
    wrong: Counter[str] = Counter()
    count = 0
    for blow in blows():
        if time.monotonic() > end:
            break
        count += 1
        problem = strike(blow, world, scratch)
        if problem is None:
            continue
        # The same words once: names, numbers and places differ.
        key = re.sub(r"['\"(0-9].*", "", problem.split("error: ", 1)[-1].splitlines()[0])
        key = f"{blow.command[0]} {key}"
        wrong[key] += 1
        if wrong[key] == 1:
            print(f"WRONG {blow} (seed {blow.seed})\n{problem}\n", flush=True)
    print(f"{count} blows, {sum(wrong.values())} wrong answers of {len(wrong)} kinds")
    for key, number in wrong.most_common():
        print(f"{number:6} {key}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
