"""A predicted step with all its parts."""
