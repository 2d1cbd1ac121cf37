"""Speed against peers: `python -m benchmarks`. Each peer runs in processes of its own, in turn with the others."""
