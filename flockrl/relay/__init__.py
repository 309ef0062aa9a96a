"""Teams that act outside training. Nothing here needs JAX: numpy and onnxruntime are enough to act."""
