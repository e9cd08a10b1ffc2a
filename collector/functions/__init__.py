"""The operators' tensor functions, as training frameworks run them."""
