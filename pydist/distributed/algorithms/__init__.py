"""Algorithms built on collectives: communication hooks, model averaging, and Join."""
