"""PyTorch's name for the room of `RemoteModule`."""
