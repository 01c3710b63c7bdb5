"""Preparation as stages of tasks (engine): hash, tally, duplicates, encode, cut, gather, finish.

stages      scoring (--keep-top), hashing, duplicates, encoding, ahead (encodes while it hashes),
            gathering (cuts and writes shards), keyranges
job         plan, parts, job: what every task depends on; destination: where the dataset goes
commands    running (prepare), worker, onray
append      adding, existingtext, nearadded, datasetplace
"""
