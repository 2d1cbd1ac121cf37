"""PyTorch's names for what its launcher and its workers share."""
