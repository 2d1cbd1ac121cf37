"""Objects that bring their own state."""

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """An object with state_dict() and load_state_dict(). As a value of the state that `save` and `load` get, it stands
    for its state: `save` calls the one, `load` both."""

    def state_dict(self) -> dict[str, Any]:
        """What is saved of the object."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what was saved."""
        ...


def is_stateful(value):
    """Whether the value stands for its state. A dict never does."""
    kind = type(value)  # isinstance(value, Stateful) takes ten times as long
    return hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict") and not isinstance(value, dict)


def check_state(state_dict, op):
    """Raises TypeError for a state that is no dict."""
    if not isinstance(state_dict, dict):
        raise TypeError(f"{op}: state_dict is {type(state_dict).__name__} (expected a dict)")


def plain(state_dict):
    """The state, with the states of objects in their places."""
    return {key: value.state_dict() if is_stateful(value) else value for key, value in state_dict.items()}
