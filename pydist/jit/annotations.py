"""Names for annotations of scripts, from `typing`."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: F401
