"""Loss scaling for float16."""

import math
import warnings

from pydist import _C, cuda
from pydist._grad_mode import no_grad
from pydist._norms import over_ranks, parts_of, two_norm
from pydist._replay import in_python
from pydist.amp import _on_device
from pydist.nn.utils.clip_grad import clip_grad_norm_


class GradScaler:
    """Multiplies the loss by a scale, so that small gradients of float16 do not become 0, and divides the gradients by
    it before the step. A step whose gradients overflowed is skipped, and the scale is reduced (Micikevicius et al.,
    2018).

    `scale(loss).backward(); step(optimizer); update()`. The scale grows by `growth_factor` after `growth_interval`
    steps without overflow, and is multiplied by `backoff_factor` after an overflow. `unscale_(optimizer)` divides
    earlier, for clipping. On a GPU the scale and the overflow flag stay on the GPU, and the host waits for neither; for
    NAdam and optimizers that are not fused it waits for the flag. With enabled=False, or for "cuda" without a GPU (with
    a warning), all calls pass through.

    All ranks skip the same steps if their gradients are equal, as with DistributedDataParallel. If each rank has its
    own gradients, process_group names the ranks that agree: a step is skipped on all of them.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> optimizer = pydist.optim.SGD([p], lr=0.5)
    >>> scaler = pydist.amp.GradScaler("cpu", init_scale=1024.0)
    >>> scaler.scale(p.sum()).backward()
    >>> p.grad.item()
    1024.0
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> p.item()
    0.5
    """

    def __init__(
        self,
        device="cuda",
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
        *,
        process_group=None,
    ):
        self._process_group = process_group
        self._device = device
        self._enabled = enabled
        if enabled and device == "cuda" and not cuda.is_available():
            warnings.warn("GradScaler is enabled, but there is no CUDA device; the scaler is disabled", stacklevel=2)
            self._enabled = False
        if self._enabled and (growth_factor <= 1.0 or backoff_factor >= 1.0):
            raise ValueError(
                f"GradScaler: growth_factor is {growth_factor}, backoff_factor {backoff_factor} (expected more "
                "than 1 and less than 1)"
            )
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._scale, self._growth_tracker = float(init_scale), 0
        self._found = {}  # optimizer's id -> whether its unscaled gradients are finite (or _on_device's flag)
        self._steps = _on_device.Steps()
        self._stepped = set()

    def scale(self, outputs):
        """The tensor, or the tensors of a list or tuple, multiplied by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, _C.Tensor):
            scale = self._scale
            if not isinstance(scale, _C.Tensor) and _C._program_recording():
                return (outputs * self._scale_near(outputs)).to(outputs.dtype)
            return outputs * (scale.reshape(()).to(outputs.device) if isinstance(scale, _C.Tensor) else scale)
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    @in_python
    def _scale_near(self, outputs):
        """The scale of this step as a tensor."""
        dtype = _C.float64 if outputs.dtype is _C.float64 else _C.float32
        return _C.tensor(self._scale, dtype=dtype, device=outputs.device)

    def _grads(self, optimizer):
        """The gradients to divide, which may happen once between two updates."""
        if id(optimizer) in self._found:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        params = (p for group in optimizer.param_groups for p in group["params"])
        grads = [p.grad for p in params if p.grad is not None]
        if any(g.dtype is _C.float16 for g in grads):
            raise ValueError("Attempting to unscale FP16 gradients.")
        return grads

    def _agree(self, finite, grads):
        """Whether the gradients are finite on all ranks of the group, and of the meshes of DTensors among them."""
        broken = over_ranks(self._process_group, 0.0 if finite else 1.0, "MAX")
        for over, _ in parts_of(grads)[1]:
            for group in over.groups:
                broken = over_ranks(group, broken, "MAX")
        return broken == 0.0

    @in_python
    @no_grad()
    def unscale_(self, optimizer):
        """Divides the gradients of the optimizer's parameters by the scale. Call it at most once between two
        updates."""
        if not self._enabled:
            return
        grads = self._grads(optimizer)
        if _on_device.belongs(grads):
            found = _on_device.unscale(grads, self._scale)
            if self._process_group is not None:
                from pydist import distributed as dist

                dist.all_reduce(found, dist.ReduceOp.MAX, group=self._process_group)
            self._found[id(optimizer)] = found
        else:
            self._found[id(optimizer)] = self._agree(_C.scale_tensors(grads, 1.0 / self.get_scale()), grads)

    @in_python
    @no_grad()
    def unscale_and_clip_(self, optimizer, max_norm):
        """unscale_(optimizer) and nn.utils.clip_grad_norm_ of its parameters; reads the gradients twice instead of
        three times. Returns the norm of the unscaled gradients on this rank."""
        if not self._enabled:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            return clip_grad_norm_(params, max_norm)
        grads = self._grads(optimizer)
        if _on_device.belongs(grads):
            self.unscale_(optimizer)
            return clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_norm)
        norm = two_norm(grads) / self._scale
        factor = min(1.0, float(max_norm) / (norm + 1e-6))
        _C.scale_tensors(grads, factor / self._scale)
        self._found[id(optimizer)] = self._agree(math.isfinite(norm), grads)
        return _C.tensor(norm, device="cpu")

    @in_python
    def step(self, optimizer, *args, **kwargs):
        """Calls optimizer.step(*args, **kwargs), unless a gradient is not finite. Unscales the gradients first if
        unscale_ was not called."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        found = self._found[id(optimizer)]
        if isinstance(found, _C.Tensor):
            if _on_device.can_skip(optimizer):
                return self._steps.make(optimizer, found, args, kwargs)
            found = found.item() == 0.0
        return optimizer.step(*args, **kwargs) if found else None

    def _forget_step(self):
        """The step under way is made again: what was found in its gradients does not count."""
        self._found.clear()
        self._stepped.clear()

    @in_python
    def update(self, new_scale=None):
        """Updates the scale, at the end of each iteration, or sets it to new_scale."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._found:
            raise RuntimeError("No inf checks were recorded prior to update.")
        elif any(isinstance(found, _C.Tensor) for found in self._found.values()):
            self._update_on_device()
        elif not all(self._found.values()):
            self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale = grown if grown < 2.0**128 else self._scale
                self._growth_tracker = 0
        self._found.clear()
        self._stepped.clear()

    def _update_on_device(self):
        found = [
            f if isinstance(f, _C.Tensor) else _C.full((1,), 0.0 if f else 1.0, device="cpu")
            for f in self._found.values()
        ]
        device = next(f.device for f in found if f.is_cuda)
        broken = sum(f.to(device) for f in found)
        if not isinstance(self._scale, _C.Tensor):
            self._scale = _C.full((1,), self._scale, device=device)
            self._growth_tracker = _C.full((1,), float(self._growth_tracker), device=device)
        _on_device.update(
            self._scale, self._growth_tracker, broken, self._growth_factor, self._backoff_factor, self._growth_interval
        )

    def _on_host(self, number, kind):
        return kind(number.item()) if isinstance(number, _C.Tensor) else number

    def get_scale(self):
        """The scale; 1.0 if disabled. Waits for the GPU if the scale is there."""
        return self._on_host(self._scale, float) if self._enabled else 1.0

    def is_enabled(self):
        """Whether the scaler scales."""
        return self._enabled

    def get_growth_factor(self):
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor):
        """Sets the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self):
        """The factor that reduces the scale after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor):
        """Sets the factor that reduces the scale after an overflow."""
        self._backoff_factor = new_factor

    def get_growth_interval(self):
        """The number of steps without overflow after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval):
        """Sets the number of steps without overflow after which the scale grows."""
        self._growth_interval = new_interval

    def state_dict(self):
        """{"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}; {} if disabled."""
        if not self._enabled:
            return {}
        self._steps.settle()
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._on_host(self._growth_tracker, int),
        }

    def load_state_dict(self, state_dict):
        """Takes the state of state_dict(). Raises RuntimeError for the empty dictionary of a disabled scaler."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval, self._growth_tracker = state_dict["growth_interval"], state_dict["_growth_tracker"]
