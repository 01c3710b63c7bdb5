"""Training where weights and moments take few bytes, and need not all be on the device at once.

Weights are a bfloat16 and eight bits more, moments eight bits each; blocks of the network are
computed one after the other, so that each may live on the device, in host memory or in a file.
"""
