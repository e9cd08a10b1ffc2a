"""Chooses what to measure next: regressors of the data so far say where another measurement helps most."""
