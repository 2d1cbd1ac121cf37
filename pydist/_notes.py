"""Notes of exceptions, also where Python has none."""


def note(error, text):
    """Adds a line to an exception, once. In Python 3.10 it is added to the message, if that is the only argument; it becomes
    the message if there are no arguments."""
    if hasattr(error, "add_note"):
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)
    elif len(error.args) == 1 and isinstance(error.args[0], str) and text not in error.args[0].splitlines():
        error.args = (f"{error.args[0]}\n{text}",)
    elif not error.args:
        error.args = (text,)
