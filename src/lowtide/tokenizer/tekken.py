"""Read Mistral's tekken.json: tokens by rank after special tokens, and a split expression.

In:      the file published with a model, or in the package mistral-common
Out:     a Vocabulary, with the same ids as mistral-common
Memory:  a few times the file
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.tokenizer.bytelevel import MAX_TOKENS
from lowtide.tokenizer.patterns import pattern_of_expression
from lowtide.tokenizer.vocabulary import Vocabulary

__all__ = ["is_tekken", "load_tekken"]

# Files before version 11 do not contain their names.
_FIRST_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


def is_tekken(data: object) -> bool:
    """True if the contents of a JSON file are a tekken.json."""
    if not isinstance(data, dict) or "model" in data:
        return False
    return isinstance(data.get("vocab"), list) and isinstance(data.get("config"), dict)


def load_tekken(data: dict[str, Any], path: Path) -> Vocabulary:
    """Read the contents of a tekken.json."""
    config = data["config"]
    try:
        pattern = pattern_of_expression(config["pattern"], path=path)
        num_specials, size = config["default_num_special_tokens"], config["default_vocab_size"]
        if not (type(num_specials) is int and type(size) is int):
            raise ValueError("sizes are not numbers")
        if not 0 <= num_specials <= size <= MAX_TOKENS:
            raise ValueError(f"{size} tokens, {num_specials} of them special")
        specials = _specials(data.get("special_tokens"), num_specials)
        tokens: dict[int, bytes] = {}
        for row in data["vocab"][: size - num_specials]:
            rank, token = row["rank"], base64.b64decode(row["token_bytes"], validate=True)
            if rank != len(tokens):
                raise ValueError(f"rank {rank} where {len(tokens)} should be")
            tokens[num_specials + rank] = token
        if len(tokens) != size - num_specials:
            raise ValueError(f"{len(tokens)} tokens, config says {size - num_specials}")
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"not a tekken.json: {error}", path=path) from None
    return Vocabulary.from_rows(
        tokens, None, special_tokens=specials, pattern=pattern, whole_pieces=True
    )


def _specials(rows: Any, count: int) -> dict[str, int]:
    """The special tokens by name; ids without one get the name given by mistral-common."""
    if rows is None:
        found = {text: rank for rank, text in enumerate(_FIRST_SPECIALS[:count])}
    else:
        found = {str(row["token_str"]): int(row["rank"]) for row in rows}
        if len(found) != len(rows) or sorted(found.values()) != list(range(len(rows))):
            raise ValueError("special tokens that come twice")
    for rank in range(len(found), count):
        found[f"<SPECIAL_{rank}>"] = rank
    if len(found) != count:
        raise ValueError(f"{len(found)} special tokens, config says {count}")
    return found
