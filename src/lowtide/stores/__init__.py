"""Objects in S3, Google Cloud Storage and Azure, read by ranges.

    urls ──▶ objects ──▶ extents (a cache of bounded size on the local disk) ──▶ loader
                 └─────▶ corpus (inputs read as streams)

obstore, which speaks to the stores, is imported by `objects` alone, when the first URL is opened.
"""
