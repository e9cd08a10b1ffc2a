"""Answers of regressors: asked in batches, substituted where a bundle lacks one, with what is doubtful about them."""
