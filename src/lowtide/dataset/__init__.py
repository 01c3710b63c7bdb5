"""Stage 3, ids to shards.

    cleaned blocks ──encoding──▶ ids by key ──sharding──▶ train/ and val/ shards ──▶ metadata
                        ▲                        ▲
             duplicates ┘      work files: finished tasks are not run again

`preparation` and `appending` run the phases; `verification`, `inspection` and `conversion` work on
a finished dataset; `layout` defines its folder, `tokenfiles` the file formats of token ids.

The modules, in reading order:

prepare     settings, preparation, chosen, existing, threaded, phases, onepass, encoding, sharding,
            finishing, summary; resources (memory and disk), rulesample, openfiles, workfolder
removing    removed (all kinds together), contamination, near/ (near copies)
append      appending, appendable, addedtext, rehashing, seen, grown, identity
workers     staged/ (prepare and append on many machines), claims
finished    layout, shardlist, storeddatasets, finished, verification, inspection
ids         tokenfiles/ (formats), conversion, importing
.npy files  pretokenization, pretokenizingplan, npywriting, provenance
"""
