"""This machine: its fingerprints, and what its devices say of themselves."""
