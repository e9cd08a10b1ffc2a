"""Store → regressors → ONNX bundle."""
