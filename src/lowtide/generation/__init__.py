"""Stage 7, weights to text: choosing the next token (sampling), text from tokens (decoding).

The modules, in reading order:

command     settings, generating, prompts
tokens      continuations (rows of one cache), sampling (torch), drawing (NumPy), recentids
text        textstreams, writing, heldtexts (until it is their turn)
backends    decoding (torch), nativewriting; JAX's is jaxtraining/generation
"""
