"""PyTorch's older name of `pydist.hub.load_state_dict_from_url`."""

from pydist.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
