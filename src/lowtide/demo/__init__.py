"""The demo: all steps from text to a trained model, with the regular commands.

text      the standard library's sources, or the user's own text
stages    the commands with their flags, and commands.sh
running   one process after another, measured; resumes where it stopped
"""
