"""How accurate a training is: its figures, the table, and the page."""
