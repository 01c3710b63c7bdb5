"""Near copies as stages of tasks (engine): sign, buckets, pairs, sets, decide.

    clean blocks ──signing──▶ signatures ──pairs──▶ candidates ──deciding──▶ removedcopies

`likeness` has the threshold and its MinHash bands, `job` what the stages share, and `running` runs
them with the threads of one process.
"""
