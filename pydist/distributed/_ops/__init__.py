"""What ranks do together: collectives, messages between two ranks, objects."""
