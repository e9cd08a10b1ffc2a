"""A predicted step with all that it is made of."""
