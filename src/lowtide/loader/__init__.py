"""Stage 4, shards to batches.

    sources ──▶ windows ──▶ batches ──▶ (inputs, targets)
                   ▲           ▲
    documents ─────┘        ordering, mixtures          streaming: text files ──▶ batches directly

Reading is NumPy and native code; torch is imported by `torchloaders` alone.

The modules, in reading order:

windows     sources, windows, tokenstreams, arraystreams
batches     ordering, shuffledblocks, mixtures, batchthreads, batches; torchloaders, passes,
            datamodule (for torch)
stores      storedtokens, storestreams, storeahead
streaming   streaming, endlessbatches, texts, textencoders, tokenblocks, readahead, heldout,
            footprint
checks      datachecks, checkedfiles, inspection, selftest
"""

from lowtide.loader.batches import BatchLoader
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset

__all__ = ["BatchLoader", "Mixture", "TokenDataset"]
