"""Plans: which shapes are measured, and what they need."""
