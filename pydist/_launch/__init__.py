"""The launcher behind `python -m pydist.run`: options, workers, their output, and the end of a job."""
