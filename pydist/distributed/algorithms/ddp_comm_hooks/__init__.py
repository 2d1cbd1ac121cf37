"""Communication hooks for DistributedDataParallel.register_comm_hook, with PyTorch's names.

When all gradients of a bucket are ready, hook(state, bucket) is called. It returns a Future of the tensor that replaces
them. The hook may change the bucket's buffer, and divides by the number of ranks itself. In a world of one no hook is
called. DistributedDataParallel.register_builtin_comm_hook has hooks in C, some of which PyTorch does not have.
"""
