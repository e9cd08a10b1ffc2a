"""What is asked: the model, its layout on devices, and files that hold either."""
