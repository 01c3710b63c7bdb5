"""Stage 1, bytes to documents.

    inputs ──reading──▶ blocks ──cleaning──▶ work files ──deduplication──▶ lines to leave out

Blocks are the same for any number of workers, and so is everything made from them.
"""
