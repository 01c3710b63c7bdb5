"""Estimate the memory of streaming batches from text, and of loading all of it instead."""

from __future__ import annotations

from lowtide.aliases import takes_second_names
from lowtide.loader.textencoders import ENCODING_THREADS
from lowtide.settings import require_counts
from lowtide.tokenizer.limits import EncodingLimits

__all__ = ["estimate_memory_usage", "planned_bytes"]

# A block of text of up to 6 MiB while it is read, cut and encoded; all of its ids, if it has no
# place to cut to encode it in parts (measured: 42 MiB, ordinary text 22).
_TEXT_BYTES = 46 << 20


def planned_bytes(*, seq_len: int, shuffle_buffer_size: int, stride: int | None = None) -> int:
    """The memory of streaming: the current block and the next, each held twice while it is cut.

    >>> planned_bytes(seq_len=128, shuffle_buffer_size=10_000)
    102268928
    """
    block = max(1, shuffle_buffer_size) * (stride or seq_len) * 4
    return 4 * block + _TEXT_BYTES + ENCODING_THREADS * EncodingLimits.cache_bytes


@takes_second_names
def estimate_memory_usage(
    num_sequences: int, seq_len: int, batch_size: int
) -> dict[str, float | str]:
    """Compare all sequences in memory with one batch of them: inputs and targets, 4 bytes per id.

    >>> estimate_memory_usage(num_sequences=100_000, seq_len=128, batch_size=32)
    {'full_load_mb': 97.66, 'streaming_mb': 0.03, 'memory_savings': '99.97%'}
    """
    require_counts(num_sequences=num_sequences, seq_len=seq_len, batch_size=batch_size)
    row_mb = seq_len * 2 * 4 / (1 << 20)
    full = num_sequences * row_mb
    streaming = min(batch_size, num_sequences) * row_mb
    return {
        "full_load_mb": round(full, 2),
        "streaming_mb": round(streaming, 2),
        "memory_savings": f"{100 * (1 - streaming / full):.2f}%",
    }
