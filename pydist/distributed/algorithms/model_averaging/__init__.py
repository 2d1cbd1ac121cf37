"""Averaging of the replicas' parameters instead of their gradients."""
