"""A training step taken apart into operator calls, and their times added up again."""
