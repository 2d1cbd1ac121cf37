"""Communication between ranks: collectives, messages between two ranks, objects."""
