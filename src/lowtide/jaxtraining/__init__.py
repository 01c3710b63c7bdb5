"""Training and generation in JAX: the same networks, optimizers, files and losses as with torch.

Nothing here imports torch, and nothing elsewhere imports JAX: `lowtide.training.backends` and
`lowtide.generation` import this package by its name when `--backend jax` asks for it.

The modules, in reading order:

network     trees (weights), network, loss, loading
step        engine, optimizers, muon, eightbit, feeding
run         backend, devices, processes, evaluation, generation
"""
