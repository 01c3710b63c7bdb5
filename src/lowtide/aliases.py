"""Second names of settings: what the guides and other programs call the same thing.

In:      a name as it was typed: a flag, a key of a config file, a keyword
Out:     the name that the settings have

This table is the only place of second names. Inside, each thing has the first name of its row; a
verb whose settings have another one of the row keeps it, and takes all others too.
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["SAME_SETTINGS", "own_name"]

SAME_SETTINGS = (
    ("input_files", "input", "input_file"),
    ("out_dir", "output_dir", "output_prefix"),
    ("tokenization", "tokenizer"),
    ("text_field", "text_column"),
    ("processes", "cores", "num_threads", "num_workers"),
    ("tokens", "num_tokens"),
    ("seq_len", "sequence_length", "context_length", "max_length", "block_size"),
    ("num_layers", "n_layer"),
    ("width", "n_embd"),
    ("num_heads", "n_head"),
    ("num_kv_heads", "n_kv_head"),
    ("gradient_accumulation_steps", "grad_accum_steps"),
    ("warmup", "warmup_iters", "warmup_steps"),
    ("eval_dataset_dir", "eval_sets"),
    ("eval_iters", "eval_batches"),
)
"""Names of one setting each, the chosen one first."""


def own_name(name: str, known: Container[str]) -> str:
    """The name among `known` that means the same as `name`; `name` itself if there is none.

    >>> own_name("input", {"input_files", "out_dir"}), own_name("nonsense", {"out_dir"})
    ('input_files', 'nonsense')
    """
    if name in known:
        return name
    for row in SAME_SETTINGS:
        if name in row:
            return next((other for other in row if other in known), name)
    return name
