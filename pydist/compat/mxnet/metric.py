"""Metrics: sums over batches, since the last reset() and since reset_local()."""

import json
import math

import numpy

from pydist.compat.mxnet.ndarray.ndarray import NDArray

_known = {}


def _register(*names):
    return lambda klass: _known.update(dict.fromkeys((klass.__name__.lower(), *names), klass)) or klass


def register(klass):
    """A class decorator: create() finds it under its name in small letters."""
    return _register()(klass)


def check_label_shapes(labels, preds):
    """Raises ValueError if there are not as many labels as predictions."""
    if len(labels) != len(preds):
        raise ValueError(f"metric: got {len(labels)} labels and {len(preds)} predictions (expected as many)")


def _list(value):
    return [value] if isinstance(value, (NDArray, numpy.ndarray)) else value


class EvalMetric:
    """A base class: subclasses have update(labels, preds), or `_measure(label, pred)`, which gives (sum, count)."""

    def __init__(self, name, output_names=None, label_names=None, **kwargs):
        self.name, self.output_names, self.label_names, self._kwargs = str(name), output_names, label_names, kwargs
        self.reset()

    def __str__(self):
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self):
        """What create() makes the same metric of."""
        names = {"name": self.name, "output_names": self.output_names, "label_names": self.label_names}
        return {**self._kwargs, "metric": type(self).__name__, **names}

    def reset(self):
        """Forgets everything."""
        self.reset_local()
        self.global_sum_metric, self.global_num_inst = 0.0, 0

    def reset_local(self):
        """Forgets what get() returns."""
        self.sum_metric, self.num_inst = 0.0, 0

    def update(self, labels, preds):
        """Adds a batch: lists of arrays, or arrays."""
        labels, preds = _list(labels), _list(preds)
        check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds):
            self._add(*self._measure(numpy.asarray(label), numpy.asarray(pred)))

    def _add(self, total, count):
        self.sum_metric, self.num_inst = self.sum_metric + total, self.num_inst + count
        self.global_sum_metric, self.global_num_inst = self.global_sum_metric + total, self.global_num_inst + count

    def update_dict(self, label, pred):
        """Adds a batch of named arrays."""
        labels, preds = (
            [d[n] for n in names or d] for d, names in ((label, self.label_names), (pred, self.output_names))
        )
        self.update(labels, preds)

    def get(self):
        """(name, value) since reset_local()."""
        return self.name, self.sum_metric / self.num_inst if self.num_inst else math.nan

    def get_global(self):
        """(name, value) since reset()."""
        return self.name, self.global_sum_metric / self.global_num_inst if self.global_num_inst else math.nan

    def get_name_value(self):
        """[(name, value)]."""
        names, values = self.get()
        return list(zip(names, values)) if isinstance(names, list) else [(names, values)]


def create(metric, *args, **kwargs):
    """A metric of a name, of a list of them, of a function(label, pred), or of the JSON of get_config()."""
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, list):
        return CompositeEvalMetric([create(each, *args, **kwargs) for each in metric])
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if metric.startswith("{"):
        config = json.loads(metric)
        return create(config.pop("metric"), **config)
    if metric.lower() not in _known:
        raise ValueError(f"metric: got {metric!r} (expected one of {', '.join(sorted(_known))})")
    return _known[metric.lower()](*args, **kwargs)


@_register("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics at once."""

    def __init__(self, metrics=None, name="composite", output_names=None, label_names=None):
        self.metrics = [create(each) for each in metrics or []]
        super().__init__(name, output_names, label_names)

    def add(self, metric):
        self.metrics.append(create(metric))

    def _each(self, name, *args):
        return [getattr(metric, name)(*args) for metric in self.metrics]

    def reset(self):
        """Forgets everything."""
        self._each("reset")

    def reset_local(self):
        """Forgets what get() returns."""
        self._each("reset_local")

    def update(self, labels, preds):
        self._each("update", labels, preds)

    def get(self):
        """(names, values)."""
        return tuple(map(list, zip(*self._each("get")))) or ([], [])

    def get_global(self):
        """(names, values) since reset()."""
        return tuple(map(list, zip(*self._each("get_global")))) or ([], [])


def _accuracy(self, label, pred):
    pred = pred if pred.shape == label.shape else pred.argmax(self.axis)
    label, pred = label.astype(numpy.int64).ravel(), pred.astype(numpy.int64).ravel()
    check_label_shapes(label, pred)
    return int((label == pred).sum()), len(label)


def _top(self, label, pred):
    best = numpy.argsort(pred.reshape(len(pred), -1), axis=1)[:, -self.top_k :]
    return int((best == label.astype(numpy.int64).reshape(-1, 1)).sum()), len(label)


def _cross_entropy(self, label, pred):
    places = label.ravel().astype(numpy.int64)
    check_label_shapes(places, pred)
    return float((-numpy.log(pred[numpy.arange(len(places)), places] + self.eps)).sum()), len(places)


def _difference(fn):
    def measure(self, label, pred):
        label, pred = (each.reshape(len(each), 1) if each.ndim == 1 else each for each in (label, pred))
        return float(fn(label - pred)), 1

    return measure


_KINDS = {  # name: (what, other names, argument with its default, what a batch gives)
    "Accuracy": ("How often the largest prediction along `axis` is the label.", ["accuracy", "acc"], {"axis": 1},
                 _accuracy),
    "TopKAccuracy": ("How often the label is among the top_k largest predictions.", ["top_k_accuracy", "top_k_acc"],
                     {"top_k": 1}, _top),
    "CrossEntropy": ("-log of the probability of the label.", ["cross-entropy", "ce"], {"eps": 1e-12}, _cross_entropy),
    "MAE": ("The mean of |label - pred|, of batches.", ["mae"], {}, _difference(lambda d: numpy.abs(d).mean())),
    "MSE": ("The mean of (label - pred)^2, of batches.", ["mse"], {}, _difference(lambda d: (d**2).mean())),
    "RMSE": ("The root of the mean of (label - pred)^2, of batches.", ["rmse"], {},
             _difference(lambda d: math.sqrt((d**2).mean()))),
}  # fmt: skip


def _kind(title, what, names, own, measure):
    def __init__(self, *args, name=names[0], output_names=None, label_names=None, **kwargs):
        given = {**own, **dict(zip(own, args)), **kwargs}
        name = f"{name}_{given['top_k']}" if "top_k" in given and not name[-1].isdigit() else name
        EvalMetric.__init__(self, name, output_names, label_names, **given)
        vars(self).update(given)

    parts = {"__init__": __init__, "_measure": measure, "__doc__": what, "__module__": __name__}
    return _register(*names)(type(title, (EvalMetric,), parts))


for _title, _row in _KINDS.items():
    globals()[_title] = _kind(_title, *_row)


@register
class Loss(EvalMetric):
    """The mean of predictions that are losses."""

    def __init__(self, name="loss", output_names=None, label_names=None):
        super().__init__(name, output_names, label_names)

    def update(self, _, preds):
        for pred in map(numpy.asarray, _list(preds)):
            self._add(float(pred.sum()), pred.size)


class CustomMetric(EvalMetric):
    """feval(label, pred) gives a number, or (sum, count)."""

    def __init__(self, feval, name=None, allow_extra_outputs=False, output_names=None, label_names=None):
        super().__init__(name or f"custom({feval.__name__})", output_names, label_names, feval=feval)
        self._feval = feval

    def _measure(self, label, pred):
        found = self._feval(label, pred)
        return found if isinstance(found, tuple) else (found, 1)
