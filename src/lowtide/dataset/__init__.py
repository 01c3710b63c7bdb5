"""Stage 3, ids to shards.

    cleaned blocks ──encoding──▶ ids by key ──sharding──▶ train/ and val/ shards ──▶ metadata
                        ▲                        ▲
             duplicates ┘      work files: finished tasks are not run again

`preparation` and `appending` run the phases; `verification`, `inspection` and `conversion` work on
a finished dataset; `layout` defines its folder, `tokenfiles` the file formats of token ids.
"""
