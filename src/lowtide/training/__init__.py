"""Stage 6, batches to weights: the loop, optimizers, evaluation, checkpoints, several devices.

batches (loader) --> loop: forward, backward, guarded step --> checkpoints/NAME
                       |
                       +--> evaluation on named datasets, a sample of text, metrics.jsonl
"""
