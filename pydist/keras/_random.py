"""S9: in the replicas of a strategy, one seed gives each replica numbers of its own: masks of dropout, noise, augmentation. Weights
are made outside of replicas, with the same numbers on every rank. Keras' own way gives all replicas the same masks."""

import functools

from pydist.keras._replicas import in_replica


def _draw_by_replica(module):
    theirs = module.torch_seed_generator

    @functools.wraps(theirs)
    def torch_seed_generator(seed):
        generator, replica = theirs(seed), in_replica()
        if generator is not None and replica is not None:
            generator.set_state((generator.initial_seed(), 0, replica.replica_id_in_sync_group))
        return generator

    module.torch_seed_generator = torch_seed_generator


SEAMS = {"keras.src.backend.torch.random": _draw_by_replica}
