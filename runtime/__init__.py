"""Evaluates a training step from a bundle of regressors; needs only numpy and onnxruntime."""
