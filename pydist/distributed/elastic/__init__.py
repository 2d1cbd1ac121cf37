"""PyTorch's names for restarts of workers. `pydist.run` does the work."""
