"""What `python -m pydist.doctor` checks: pairs of ranks, GPUs and NCCL, and jobs that are running already.
pydist/doctor.py has the command line."""
