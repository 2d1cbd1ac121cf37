"""tf.compat.v1.tpu: CrossShardOptimizer, which combines the gradients of all replicas."""

from pydist.distribute import CrossReplicaOptimizer as CrossShardOptimizer
from pydist.tensorflow._names import lacking as _lacking

__all__ = ["CrossShardOptimizer"]

__getattr__ = _lacking(__name__)
