"""Stage 3, ids to shards.

    cleaned blocks ──encoding──▶ ids by key ──sharding──▶ train/ and val/ shards ──▶ metadata
                        ▲                        ▲
             duplicates ┘      work files: finished tasks are not repeated

`preparation` and `appending` run the phases; `verification`, `inspection` and `conversion` work on
what is there; `layout` knows the folder, `tokenfiles` the formats of files of ids.
"""
