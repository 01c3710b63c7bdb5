"""Training with --offload: packed weights and moments, not all on the device at the same time.

A weight is a bfloat16 and eight more bits, a moment eight bits. Blocks of the network are computed
one after another, so that each can be stored on the device, in host memory or in a file.

The modules, in reading order:

states      units, packing, kernels (GPU), smalls (gains and biases)
storage     placement (the table of rungs), homes, filehome, blockinputs
step        engine, executor, calling, muon, exactsums
network     backend, network, torchdraws
"""
