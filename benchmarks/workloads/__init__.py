"""What is trained: one file a model, shared by all libraries with PyTorch's names; jax_form.py and keras_form.py for the others.

A file has make(lib, best, **sizes) -> (model, batch, optimizer): the model maps the batch's tensors to the loss, the batch
are tensors whose first dimension ranks divide, optimizer(parameters) makes the optimizer. best: a dictionary of the
options that make the library fastest ({"fused": True}, {"channels_last": True}).
"""

from importlib import import_module

# name: (file, sizes)
WORKLOADS = {
    "mlp": ("mlp", {"batch": 64}),
    "mlp-256": ("mlp", {"batch": 256}),
    "cnn": ("cnn", {"batch": 64}),
    "resnet18": ("resnet", {"batch": 32}),
    "gpt-nano": ("gpt", {"size": "nano"}),
    "gpt-baby": ("gpt", {"size": "baby"}),
    "gpt2-124M": ("gpt", {"size": "124M"}),
    "bert-mini": ("bert", {"batch": 32}),
}

# On a GPU (benchmarks/cuda.py), in bfloat16.
ON_CUDA = {"gpt2-124M": ("gpt", {"size": "124M-1024"}), "resnet50": ("resnet50", {"batch": 256})}


def load(name):
    """The workload's module and sizes."""
    file, sizes = WORKLOADS[name]
    return import_module(f"benchmarks.workloads.{file}"), sizes
