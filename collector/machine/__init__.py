"""This machine: its fingerprints, and the readings of its devices."""
