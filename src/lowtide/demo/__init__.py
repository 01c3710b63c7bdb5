"""The whole way on text that every machine has, by the ordinary verbs.

text      the standard library's sources, or the user's own text
stages    the verbs with their flags, and commands.sh
running   one process after the other, measured; goes on where it stopped
"""
