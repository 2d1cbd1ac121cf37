"""Steps within backward, which pydist has as hooks of tensors."""

__all__ = []


def _apply_optimizer_in_backward(optimizer_class, params, optimizer_kwargs, register_hook=True):
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "distributed.optim._apply_optimizer_in_backward: not there (expected an optimizer's step in "
        "register_post_accumulate_grad_hook)"
    )


def _get_in_backward_optimizers(module):
    """The optimizers that _apply_optimizer_in_backward has made: none."""
    return []
