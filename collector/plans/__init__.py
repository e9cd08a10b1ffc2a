"""Plans: the shapes that are measured, and their memory."""
