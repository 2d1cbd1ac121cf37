"""Trainer: steps parameters by an optimizer, through a store where there are several contexts or workers."""

import os

from pydist.compat.mxnet import kvstore as kvs
from pydist.compat.mxnet import optimizer as opt
from pydist.compat.mxnet.gluon.parameter import Parameter


class Trainer:
    """Steps parameters that are on one set of contexts. kvstore: a name for mx.kv.create() or a store; one context
    without a "dist" store needs none. update_on_kvstore: whether the store, not each worker, runs the optimizer."""

    _kvstore = None

    def __init__(self, params, optimizer, optimizer_params=None, kvstore="device", compression_params=None,
                 update_on_kvstore=None):  # fmt: skip
        params = [params[name] for name in sorted(params)] if isinstance(params, dict) else params
        if not isinstance(params, (list, tuple)) or not all(isinstance(param, Parameter) for param in params):
            raise ValueError(f"Trainer: got a {type(params).__name__} (expected a list or dict of Parameters)")
        self._params, self._param2idx = list(params), {param.name: i for i, param in enumerate(params)}
        for param in self._params:
            param._set_trainer(self)
        self._sparse_weight = any(param._stype != "default" for param in self._params)
        self._sparse_grad = any(param._grad_stype != "default" for param in self._params)
        contexts = [param.list_ctx() for param in self._params] or [[]]
        assert contexts.count(contexts[0]) == len(contexts), f"Trainer: parameters are on {contexts} (expected one set)"
        self._contexts, self._compression_params = contexts[0], compression_params
        by_index = dict(enumerate(self._params))
        if isinstance(optimizer, opt.Optimizer):
            assert not optimizer_params, "Trainer: optimizer_params beside an Optimizer (expected them in it)"
            self._optimizer, optimizer.param_dict = optimizer, by_index
        else:
            self._optimizer = opt.create(optimizer, param_dict=by_index, **(optimizer_params or {}))
        self._updaters = [opt.get_updater(self._optimizer) for _ in self._contexts]
        self._scale, self._wanted = self._optimizer.rescale_grad, (kvstore, update_on_kvstore)
        self._reset_kvstore()

    def _reset_kvstore(self):
        if self._kvstore is not None and "dist" in self._kvstore.type:
            raise RuntimeError("Trainer: new values beside a distributed store (expected them before the first step)")
        self._kvstore, self._kv_initialized, self._distributed, self._update_on_kvstore = None, False, None, None
        self._params_to_init = list(self._params)

    def _chosen(self):
        """(the store or None, whether it runs the optimizer)."""
        store, wanted = self._wanted
        if not isinstance(store, (str, kvs.KVStoreBase, type(None))):
            raise TypeError(f"Trainer: kvstore is {type(store).__name__} (expected a name, a KVStore or None)")
        if isinstance(store, str):
            alone = len(self._contexts) == 1 and "dist" not in store and not self._sparse_weight
            store = None if alone else kvs.create(store)
        if store is None and not self._sparse_weight:
            return None, None
        distributed = store is not None and "dist" in store.type
        must = self._sparse_weight or (distributed and ("async" in store.type or self._sparse_grad))
        if must and (wanted is False or store is None):
            raise ValueError("Trainer: update_on_kvstore=False with sparse weights, or with sparse gradients or an "
                             "asynchronous store of several workers (expected the store to step)")  # fmt: skip
        if self._sparse_grad and not isinstance(store, kvs.KVStore):
            raise ValueError(f"Trainer: {store.type} with sparse gradients (expected a KVStore)")
        default = distributed if self._sparse_grad else bool(int(os.getenv("MXNET_UPDATE_ON_KVSTORE", "1")))
        chosen = must or (default if wanted is None else wanted)
        if wanted and not store.is_capable("optimizer"):
            raise ValueError(f"Trainer: update_on_kvstore=True with {store.type} (expected False: it has no optimizer)")
        return store, chosen and store.is_capable("optimizer")

    def _init_kvstore(self):
        store, on_store = self._chosen()
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        if on_store:
            store.set_optimizer(self._optimizer)
        self._kvstore, self._update_on_kvstore, self._kv_initialized = store, on_store, True
        self._distributed = store is not None and "dist" in store.type

    def _ready(self):
        """Makes the store, and gives it the parameters that have values by now."""
        if not self._kv_initialized:
            self._init_kvstore()
        waiting = []
        for param in self._params_to_init if self._kvstore is not None else ():
            if param._deferred_init:
                waiting.append(param)
                continue
            arrays, index = param._check_and_get(param._data, list), self._param2idx[param.name]
            if param._stype != "default" or (isinstance(self._kvstore, kvs.KVStore) and not self._distributed):
                self._kvstore.init(index, arrays[0])  # all contexts have these values
            else:
                self._kvstore.broadcast(index, arrays[0], arrays)
        self._params_to_init = waiting

    learning_rate = property(lambda self: self._optimizer.learning_rate, doc="The optimizer's.")
    optimizer = property(lambda self: self._optimizer, doc="The optimizer.")

    def set_learning_rate(self, lr):
        """The learning rate from the next step on."""
        self._optimizer.set_learning_rate(lr)

    def _row_sparse_pull(self, parameter, out, row_id):
        self._ready()
        self._kvstore.row_sparse_pull(self._param2idx[parameter.name], out=out, row_ids=row_id)

    def _learning(self):
        return [(i, param) for i, param in enumerate(self._params) if param.grad_req != "null"]

    def step(self, batch_size, ignore_stale_grad=False):
        """Sums gradients over contexts and workers, and steps with them, divided by batch_size. Raises UserWarning for
        a gradient that no backward() has written since the last step, unless ignore_stale_grad."""
        self._optimizer.rescale_grad = self._scale / batch_size
        self._ready()
        self._allreduce_grads()
        self._update(ignore_stale_grad)

    def _only_here(self, what):
        self._ready()
        on_store = self._kvstore and self._update_on_kvstore
        assert not on_store, f"Trainer.{what}: the store runs the optimizer (expected update_on_kvstore=False)"

    def allreduce_grads(self):
        """Sums gradients over contexts and workers; only with update_on_kvstore=False."""
        self._only_here("allreduce_grads")
        self._allreduce_grads()

    def _allreduce_grads(self):
        for i, param in self._learning() if self._kvstore else ():
            if self._update_on_kvstore and param._stype != "default":
                self._kvstore.push(i, param.list_grad())
            else:
                self._kvstore.pushpull(i, param.list_grad(), param.list_data() if self._update_on_kvstore else None)

    def update(self, batch_size, ignore_stale_grad=False):
        """The step without the sum; only with update_on_kvstore=False."""
        self._only_here("update")
        self._optimizer.rescale_grad = self._scale / batch_size
        self._update(ignore_stale_grad)

    def _update(self, ignore_stale_grad):
        for i, param in self._learning():
            arrays = param._check_and_get(param._data, list)
            stale = [data.context for data in arrays if not data._fresh_grad]
            if stale and not ignore_stale_grad:
                raise UserWarning(f"Trainer: no backward() has written the gradient of {param.name} on {stale} since "
                                  "the last step (expected one, or ignore_stale_grad=True)")  # fmt: skip
            for updater, data in zip(self._updaters, arrays):
                if not self._update_on_kvstore and data._fresh_grad:
                    updater(i, data.grad, data)
                    data._fresh_grad = False

    def save_states(self, fname):
        """Writes what the optimizer remembers."""
        self._ready()
        if self._update_on_kvstore:
            self._kvstore.save_optimizer_states(fname, dump_optimizer=True)
            return
        with open(fname, "wb") as file:
            file.write(self._updaters[0].get_states(dump_optimizer=True))

    def load_states(self, fname):
        """Reads it again."""
        self._ready()
        if self._update_on_kvstore:
            self._kvstore.load_optimizer_states(fname)
            return
        with open(fname, "rb") as file:
            states = file.read()
        for updater in self._updaters:
            updater.set_states(states)
