"""Real training steps under torch.distributed: pipeline, tensor and data parallel, timed and traced."""
