"""Stage 4, shards to batches.

    sources ──▶ windows ──▶ batches ──▶ (inputs, targets)
                   ▲           ▲
    documents ─────┘        ordering, mixtures          streaming: text files ──▶ batches directly

Reading is NumPy and native code; torch is imported by `torchloaders` alone.
"""

from lowtide.loader.batches import BatchLoader
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset

__all__ = ["BatchLoader", "Mixture", "TokenDataset"]
