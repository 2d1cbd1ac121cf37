"""What `python -m pydist.doctor` looks at: pairs of ranks, GPUs and NCCL, and jobs that run already. doctor.py is its face."""
