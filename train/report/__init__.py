"""How good a training is: its figures, and the page that shows them (extra `report`)."""
