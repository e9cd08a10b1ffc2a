"""Operator times from regressors, evaluated in batches, with substitutes for missing ones and warnings."""
