"""Stage 7, weights to text: choosing the next token (sampling), text from tokens (decoding)."""
