"""Train language models on any amount of text inside a memory budget you choose."""

__version__ = "0.1.0"
