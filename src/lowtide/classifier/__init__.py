"""Train classifiers of text: good examples and others in, a model of fastText out."""
