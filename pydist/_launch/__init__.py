"""The launcher behind `python -m pydist.run`: options, workers, their output, and what ends a job."""
