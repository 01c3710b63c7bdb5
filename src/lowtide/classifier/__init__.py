"""Train text classifiers: from good and other examples to a fastText model.

    clean blocks ──examples──▶ a sample ──examplefiles──▶ files ──learning──▶ model ──judging──▶ AUC

`training` runs these phases, as `settings` say; `resources` divides the budget; `describing` is the
output of the verb.
"""
