"""Stage 2: text <-> ids, and learning the vocabulary from text.

text files --training--> Vocabulary --Tokenizer--> ids
"""

from lowtide.tokenizer.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary

__all__ = ["END_OF_TEXT", "UNKNOWN", "Tokenizer", "Vocabulary"]
