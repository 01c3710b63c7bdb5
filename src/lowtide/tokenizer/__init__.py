"""Stage 2: text <-> ids, and learning the vocabulary from text.

text files --training--> Vocabulary --Tokenizer--> ids

The modules, in reading order:

using       tokenizer (the class Tokenizer), named, giventexts, vocabulary, patterns, characters,
            ids, filesteps, limits
files       formats (finds and reads any), bytelevel, huggingface, jsonsections, tekken, piecefiles
other rules pieces (SentencePiece's), package (run by the package tokenizers), tokentexts, composing
training    settings, training, counting, learning, trained; scanning (characters)
budget      countingplan, footprint, needs, stretches
workers     sharing, sharedtraining
checks      ownrecords, ownfiles; reference (in plain Python, for tests)
showing     inspection, comparison
"""

from lowtide.tokenizer.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary

__all__ = ["END_OF_TEXT", "UNKNOWN", "Tokenizer", "Vocabulary"]
