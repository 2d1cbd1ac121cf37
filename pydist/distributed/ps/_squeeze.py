"""Gradient compression by MXNet's rules: what a push loses stays in a residual and is pushed later."""

import pydist


class Squeeze:
    """`type`: "2bit" pushes -threshold, 0 or threshold for each element; "1bit" pushes -1 or 1 by whether it is over the
    threshold; "fp16" and "bf16" round. Raises ValueError for other values."""

    TYPES = ("2bit", "1bit", "fp16", "bf16")

    def __init__(self, type="2bit", threshold=None):
        if type not in self.TYPES:
            raise ValueError(f"set_gradient_compression: type is {type!r} (expected one of {', '.join(self.TYPES)})")
        if threshold is None:
            threshold = 0.5 if type == "2bit" else 0.0
        if type == "2bit" and not threshold > 0:
            raise ValueError(f"set_gradient_compression: threshold is {threshold} (expected more than 0)")
        self.type, self.threshold, self._residuals = type, float(threshold), {}

    def __call__(self, key, gradient):
        """The gradient that is pushed in the place of this one. Raises TypeError unless it is float32."""
        if gradient.dtype is not pydist.float32:
            raise TypeError(f"push: {self.type} compression of {gradient.dtype} (expected float32)")
        if self.type in ("fp16", "bf16"):
            return gradient.to(pydist.float16 if self.type == "fp16" else pydist.bfloat16).to(pydist.float32)
        whole = gradient.detach() + self._residuals.get(key, 0.0)
        t = self.threshold
        if self.type == "1bit":
            sent = pydist.where(whole > t, 1.0, -1.0)
        else:
            sent = pydist.where(whole >= t, t, pydist.where(whole <= -t, -t, 0.0))
        sent = sent.to(pydist.float32)
        self._residuals[key] = whole - sent
        return sent
