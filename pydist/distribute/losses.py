"""Losses whose sum over the replicas is the mean over the rows of the global batch."""

from pydist.distribute.context import here

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def _replicas():
    return 1 if here.replica is None else here.replica.num_replicas_in_sync


def compute_average_loss(per_example_loss, sample_weight=None, global_batch_size=None):
    """sum(per_example_loss * sample_weight) / global_batch_size: this replica's part of the mean over the global
    batch. Optimizers sum the gradients of all replicas, so the result does not depend on how many there are.

    Without global_batch_size the ranks add their rows up first. TensorFlow: tf.nn.compute_average_loss.
    """
    if per_example_loss.dim() == 0:
        raise ValueError("compute_average_loss: per_example_loss is a single number (expected the loss of each row)")
    if global_batch_size is None:
        rows = per_example_loss.shape[0]
        global_batch_size = rows if _replicas() == 1 else int(here.replica.all_reduce("SUM", rows).item())
    if not global_batch_size > 0:
        raise ValueError(f"compute_average_loss: global_batch_size is {global_batch_size!r} (expected more than 0)")
    weighted = per_example_loss if sample_weight is None else per_example_loss * sample_weight
    return weighted.sum() / global_batch_size


def scale_regularization_loss(regularization_loss):
    """A term that does not depend on the batch, divided by the number of replicas, since their gradients are summed.
    TensorFlow: tf.nn.scale_regularization_loss."""
    return regularization_loss.sum() / _replicas()
