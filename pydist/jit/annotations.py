"""Names for annotations of scripts, which stand in `typing`."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: F401
