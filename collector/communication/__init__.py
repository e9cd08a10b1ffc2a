"""Exchanges between processes: who they are, which groups they form, how long it takes."""
