"""PyTorch's older name for `pydist.hub.load_state_dict_from_url`."""

from pydist.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
