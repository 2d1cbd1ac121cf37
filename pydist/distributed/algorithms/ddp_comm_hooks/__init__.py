"""Communication hooks for DistributedDataParallel.register_comm_hook, with PyTorch's names.

A hook is called as hook(state, bucket) when all gradients of a bucket are there, and returns a Future of the tensor
that they become; the bucket's buffer may be changed. It divides by the number of ranks itself. In a world of one no
hook is called. The same in C, and what PyTorch has not: DistributedDataParallel.register_builtin_comm_hook.
"""
