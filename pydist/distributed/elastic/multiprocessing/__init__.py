"""PyTorch's names for what its launcher and workers share."""
