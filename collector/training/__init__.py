"""Real training steps under torch.distributed: pipeline, tensor and data parallelism, timed and traced."""
