"""What hardware can do at most: published peaks of devices, and what no operator can be faster than."""
