"""PyTorch's names for wrappers that checkpoint activations."""
