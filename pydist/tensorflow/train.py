"""tf.train: checkpoints, Example and its kin, ClusterSpec."""

from pydist.tensorflow._names import lazy as _lazy

__getattr__, __dir__ = _lazy(
    __name__,
    {
        "_checkpoint": """Checkpoint CheckpointManager CheckpointOptions checkpoints_iterator get_checkpoint_state
            latest_checkpoint list_variables load_checkpoint load_variable""",
        "pydist.data.": "BytesList Example Feature FeatureList FeatureLists Features FloatList Int64List "
        "SequenceExample",
        "pydist.distribute.cluster_resolver.": "ClusterSpec",
    },
)
