"""Trains a Keras model on images of digits with `fit`, on one or more ranks.

    python -m pydist.examples.keras_mnist --data DIR
    python -m pydist.run --nproc-per-node 2 -m pydist.examples.keras_mnist --data DIR

DIR has the idx files of MNIST or Fashion-MNIST. The default is scikit-learn's digits (8 x 8 pixels). The batch is global:
the replicas divide it. Workers that TF_CONFIG names are replicas, too. A program that says `import tensorflow as tf`,
`tf.keras` and `tf.distribute` runs unchanged under `python -m pydist.run --compat`.
"""

import argparse
import sys

from pydist import distributed as dist
from pydist.distribute import MultiWorkerMirroredStrategy
from pydist.examples.mnist import CLASSES, HIDDEN, digits
from pydist.vision.datasets import idx


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pydist.examples.keras_mnist", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="folder with idx files (default: scikit-learn's digits)")
    parser.add_argument("--epochs", type=int, help="default: 30 on the digits, 5 with --data")
    parser.add_argument("--batch-size", type=int, default=32, help="of all replicas together (default: %(default)s)")
    parser.add_argument("--save", metavar="FILE", help="the trained model: a .keras file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--verbose", type=int, default=2, help="1: a progress bar, 2: a line an epoch (default), 0: none"
    )
    args = parser.parse_args()
    if args.epochs is None:
        args.epochs = 30 if args.data is None else 5
    if args.epochs < 1 or args.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return args


def rows(images, labels):
    """Images as rows of numbers from 0 to 1."""
    return images.reshape(len(images), -1).astype("float32") / images.max(), labels.astype("int64")


def main():
    """Trains, and prints the accuracy on the test set."""
    args = arguments()
    try:
        parts = digits() if args.data is None else [idx.read_pair(args.data, part) for part in ("train", "t10k")]
        train, test = (rows(*part) for part in parts)
        from pydist import keras
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"keras_mnist: {error}")

    strategy = MultiWorkerMirroredStrategy()  # the launcher's ranks, TF_CONFIG's workers, or this process
    if dist.get_rank() == 0:
        print("Number of devices:", strategy.num_replicas_in_sync)
    keras.utils.set_random_seed(args.seed)
    with strategy.scope():
        model = keras.Sequential([
            keras.layers.Input(train[0].shape[1:]),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ])  # fmt: skip
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*train, args.batch_size, args.epochs, args.verbose, validation_data=test)
    right = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    if dist.get_rank() == 0:
        if args.save:
            model.save(args.save)
        print(f"test accuracy: {right:.4f}")


if __name__ == "__main__":
    main()
