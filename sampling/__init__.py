"""Adaptive sampling: regressors of the data so far decide where another measurement helps most."""
