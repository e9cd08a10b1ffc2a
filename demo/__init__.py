"""The whole loop on this machine: measure, store, train, predict, and check against a real step."""
