"""Stage 4, shards to batches.

    sources ──▶ windows ──▶ batches ──▶ (inputs, targets)
                   ▲           ▲
    documents ─────┘        ordering, mixtures          streaming: text files ──▶ batches directly

Reading is NumPy and native code; torch is imported by `tensors` alone.
"""
