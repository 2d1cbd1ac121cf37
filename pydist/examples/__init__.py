"""Example programs to run and to read: `python -m pydist.examples.mnist`."""
