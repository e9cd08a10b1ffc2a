"""Measures operators, collectives and real training steps on this machine."""
