"""S5: a step of Keras' optimizers is one call of C for all variables, by Keras' own formulas.

Keras' PyTorch backend has classes of its own for nine optimizers, which update all variables in some ten passes over
memory. Clipping, weight decay, averages of weights and accumulation of gradients stay Keras'.
"""

from pydist import _C, _replay


def _sgd(self, params, states, **options):
    _C.sgd_step(params, *(states or [None]), momentum=self.momentum, nesterov=self.nesterov, **options)


def _adam(self, params, states, **options):
    if not self.amsgrad:
        states = *states, None
    betas = dict(beta1=self.beta_1, beta2=self.beta_2)
    _C.adam_step(params, *states, **betas, eps=self.epsilon, amsgrad=self.amsgrad, **options)


def _nadam(self, params, states, **options):
    betas = dict(beta1=self.beta_1, beta2=self.beta_2)
    _C.moments_step(params, *states, **betas, eps=self.epsilon, momentum_decay=1.0, nesterov=True, **options)


def _adamax(self, params, states, **options):
    _C.adamax_step(params, *states, beta1=self.beta_1, beta2=self.beta_2, eps=self.epsilon, **options)


def _adadelta(self, params, states, **options):
    _C.adadelta_step(params, *states, rho=self.rho, eps=self.epsilon, **options)


def _rmsprop(self, params, states, **options):
    rest = iter(states[1:])
    moves, means = next(rest) if self.momentum > 0 else None, next(rest) if self.centered else None
    options.update(alpha=self.rho, eps=self.epsilon, momentum=self.momentum, centered=self.centered)
    _C.rmsprop_step(params, states[0], moves, means, **options)


def _adagrad(self, params, states, **options):
    _C.adagrad_step(params, *states, eps=self.epsilon, **options)


def _lion(self, params, states, **options):
    _C.lion_step(params, *states, beta1=self.beta_1, beta2=self.beta_2, **options)


def _rmsprop_states(self):
    return "_velocities", *["_momentums"] * (self.momentum > 0), *["_average_gradients"] * self.centered


# class: (the engine's call, the attributes with the variables of its state)
METHODS = {
    "SGD": (_sgd, lambda self: ("momentums",) if self.momentum != 0 else ()),
    "Adam": (_adam, lambda self: ("_momentums", "_velocities", *["_velocity_hats"] * self.amsgrad)),
    "Nadam": (_nadam, lambda self: ("_momentums", "_velocities")),
    "Adamax": (_adamax, lambda self: ("_m", "_u")),
    "Adadelta": (_adadelta, lambda self: ("_accumulated_grads", "_accumulated_delta_vars")),
    "RMSprop": (_rmsprop, _rmsprop_states),
    "Adagrad": (_adagrad, lambda self: ("_accumulators",)),
    "Lion": (_lion, lambda self: ("_momentums",)),
}


def _by_dtype(params, *others):
    """The lists, once for each dtype of parameters."""
    dtypes = dict.fromkeys(p.dtype for p in params)
    if len(dtypes) == 1:
        return [(params, *others)]
    at = {dtype: [i for i, p in enumerate(params) if p.dtype is dtype] for dtype in dtypes}
    return [[[column[i] for i in rows] for column in (params, *others)] for rows in at.values()]


def _fuse(module):
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    name = module.__name__.rpartition("torch_")[2]
    cls = next(value for key, value in vars(module).items() if key.lower() == name)
    call, names = METHODS[cls.__name__]
    theirs = cls._parallel_update_step

    def _parallel_update_step(self, grads, variables, learning_rate):
        if in_stateless_scope():
            return theirs(self, grads, variables, learning_rate)
        at = [self._get_variable_index(variable) for variable in variables]
        states = [[column[i].value for i in at] for column in (getattr(self, name) for name in names(self))]
        rate = getattr(learning_rate, "value", learning_rate)
        options = {} if isinstance(rate, _C.Tensor) else {"lr": float(rate)}
        if options:
            _replay.refuse("the learning rate is a function of Python")
        now = None if options else rate, self._iterations.value, *([self._u_product.value] if call is _nadam else [])
        params = [variable.value for variable in variables]
        grads = [g if g.dtype is p.dtype else g.to(p.dtype) for g, p in zip(grads, params)]
        for some, their_grads, *their_states in _by_dtype(params, grads, *states):
            call(self, some, their_states, keras=(their_grads, *now), **options)
        if call is _nadam:  # the product over all steps so far
            self._u_product.assign(now[2] * self.beta_1 * (1 - 0.5 * 0.96 ** (now[1] + 1).to(now[2].dtype)))

    cls._parallel_update_step = _parallel_update_step


SEAMS = {f"keras.src.backend.torch.optimizers.torch_{name.lower()}": _fuse for name in METHODS}
