"""One interface to the libraries' collectives: (rank, all_reduce, end) for a float32 array of n elements."""


def pydist(n):
    import pydist
    from pydist import distributed as dist

    dist.init_process_group()
    x = pydist.ones(n)
    return dist.get_rank(), lambda: dist.all_reduce(x), dist.destroy_process_group


def torch(n):
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    x = torch.ones(n)
    return dist.get_rank(), lambda: dist.all_reduce(x), dist.destroy_process_group


def mpi4py(n):
    import numpy
    from mpi4py import MPI

    x = numpy.ones(n, numpy.float32)
    return MPI.COMM_WORLD.rank, lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x), lambda: None
