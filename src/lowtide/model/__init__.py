"""Stage 5, the network: shape (config), shape from a parameter count (sizing), layers (gpt), files.

GPTConfig --> GPT --> weights (safetensors) --> export (transformers folder)
"""
