"""The parts of `python -m pydist.docs`."""
