"""A request: the model, its layout on devices, and files of either."""
