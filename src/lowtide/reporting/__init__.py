"""Pages to look at: one self-contained HTML file for a run, a dataset or a tokenizer.

    metrics.jsonl, metadata ──▶ runs | datasets | tokenizers ──▶ page data ──▶ pages (HTML)
                                                                     └──▶ watching (live)

Nothing here imports torch, so a page can be made wherever the files are.

The modules, in reading order:

command     settings, reports, pages, watching
data        metrics, series, runcurves, runfacts, datasetfacts
pages       runs, comparisons (of runs), datasets, datasetcomparisons, tokenizers, jobs; factstable
"""
