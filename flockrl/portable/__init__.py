"""Trained policies as files that need neither JAX nor flockrl: ONNX and TorchScript."""
