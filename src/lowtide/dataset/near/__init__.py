"""Near copies as stages of tasks (engine): sign, buckets, pairs, sets, decide."""
