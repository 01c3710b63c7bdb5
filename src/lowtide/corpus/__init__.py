"""Stage 1, bytes to documents.

    inputs ──reading──▶ blocks ──cleaning──▶ work files ──deduplication──▶ lines to remove

Blocks are the same for any number of workers, and so are all later results.
"""
