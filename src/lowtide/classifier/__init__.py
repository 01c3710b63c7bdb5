"""Train text classifiers: from good and other examples to a fastText model."""
