"""Stage 1, bytes to documents.

    inputs ──reading──▶ blocks ──cleaning──▶ work files ──deduplication──▶ lines to remove

Blocks are the same for any number of workers, and so are all later results.

The modules, in reading order:

settings    readingflags, settings
inputs      inputs (files, folders, globs and URLs), localfiles, inputformats, jsonlines, hub
blocks      textblocks (the data types), reading, cutting, grouping; nontext, decompression,
            xzdictionaries, encodings, footprint
rows        jsonrows, longrows; of parquet: rows, parquetpages, largepages
cleaning    cleaning, blockcleaning, normalforms, removals (the report); workers, workfiles,
            blocktable
filters     quality, classifiers, ranking, evaluations, usersteps, stepprocess
duplicates  deduplication
resuming    contents, inputhashes, differences: are the inputs those of the earlier command?
"""
