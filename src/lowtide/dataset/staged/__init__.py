"""Preparation as stages of tasks (engine): hash, tally, duplicates, encode, cut, gather, finish."""
