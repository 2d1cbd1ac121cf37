"""PyTorch's names around restarts; `pydist.run` does the work."""
