"""Objects in S3, Google Cloud Storage and Azure, read by ranges.

    urls ──▶ objects ──▶ extents (a cache of bounded size on the local disk) ──▶ loader
                 └─────▶ corpus (inputs read as streams)

Only `objects` imports obstore, the client of the stores, when the first URL is opened.

The modules, in reading order:

objects     urls, objects, refusals (errors), credentials, paths, localcopy
cache       extents, extentfolder, extentfiles
"""
