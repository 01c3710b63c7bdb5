"""Stage 6, batches to weights: the loop, optimizers, evaluation, checkpoints, several devices.

batches (loader) --> loop: forward, backward, guarded step --> checkpoints/NAME
                       |
                       +--> evaluation on named datasets, a sample of text, metrics.jsonl

The modules, in reading order:

settings    settings, settinggroups, learningsettings, settingchecks; choosing (defaults),
            unusedsettings, torchoptions (what excludes each other), resuming
a run       start, admission, trainer, loop, steps, state, schedule, signals, diagnostics, callbacks
data        data, texttokens, textneeds, heldout, batchsources, ownbatches, basemodel
backends    backends (the interface); ladder/ and jaxtraining/ are the other two
torch       torchbackend, stepping, lossforms, feeding, counters, distributed, compiling,
            microbatches, modules
optimizers  optimizers, adamw, muon, muonkernels, muonnumbers, averaging; sharedrows, spelling,
            partkernels (embeddings of tokens that are spelled alike); firstembedding
checkpoints checkpoints, saving, hostcopies, oldstates, runidentity, agreement
memory      footprint, activations, offloading, fitting, rungs; probe, trial, rates (programs that
            measure)
evaluation  evaluating, results, evaluation (torch), likelihood, questions
reports     runmetrics, eventfiles, environment, slurm
for users   trainable (GPT with `fit`), loaders (GPTDataLoader)
"""
