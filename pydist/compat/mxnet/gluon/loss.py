"""Losses: one number for each row of a batch."""

from pydist.compat.mxnet.gluon.block import HybridBlock


class Loss(HybridBlock):
    """A base class. weight: a factor; batch_axis: the axis of rows; a sample_weight multiplies elements. `own`: further
    arguments with their defaults; _elements(F, pred, label) is the loss of each element."""

    own = {}

    def __init__(self, *args, prefix=None, params=None, **kwargs):
        super().__init__(prefix, params)
        given = {**self.own, "weight": None, "batch_axis": 0}
        if len(args) > len(given) or set(kwargs) - set(given):
            raise TypeError(f"{type(self).__name__}: got {args}, {kwargs} (expected {list(given)})")
        given.update(dict(zip(given, args)), **kwargs)
        vars(self).update({f"_{name}": value for name, value in given.items()})

    def __repr__(self):
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def hybrid_forward(self, F, pred, label, sample_weight=None, *more):
        loss = self._elements(
            F, pred, label if getattr(self, "_sparse_label", False) else label.reshape(pred.shape), *more
        )
        loss = loss if sample_weight is None else F.broadcast_mul(loss, sample_weight)
        loss = loss if self._weight in (None, 1) else loss * self._weight
        return loss.mean(axis=self._batch_axis, exclude=True)


class L2Loss(Loss):
    """(label - pred)^2 / 2."""

    def _elements(self, F, pred, label):
        return F.square(label - pred) * 0.5


class L1Loss(Loss):
    """|label - pred|."""

    def _elements(self, F, pred, label):
        return F.abs(label - pred)


class SigmoidBinaryCrossEntropyLoss(Loss):
    """Cross-entropy of yes and no; from_sigmoid: pred are probabilities. A fourth argument is a factor of label 1."""

    own = {"from_sigmoid": False}

    def _elements(self, F, pred, label, pos_weight=None):
        if self._from_sigmoid:
            yes = F.log(pred + 1e-12) * label
            yes = yes if pos_weight is None else F.broadcast_mul(yes, pos_weight)
            return -(yes + F.log(1 - pred + 1e-12) * (1 - label))
        no = F.Activation(-F.abs(pred), act_type="softrelu") + F.relu(-pred)  # log(1 + exp(-pred))
        return pred - pred * label + (no if pos_weight is None else no * (1 + F.broadcast_mul(pos_weight - 1, label)))


class SoftmaxCrossEntropyLoss(Loss):
    """Cross-entropy of class numbers (sparse_label) or of distributions; from_logits: pred are logarithms already."""

    own = {"axis": -1, "sparse_label": True, "from_logits": False}

    def _elements(self, F, pred, label):
        pred = pred if self._from_logits else F.log_softmax(pred, axis=self._axis)
        if self._sparse_label:
            return -F.pick(pred, label, axis=self._axis, keepdims=True)
        return -(pred * label).sum(axis=self._axis, keepdims=True)


class KLDivLoss(Loss):
    """label * (log(label) - pred); from_logits: pred are logarithms already."""

    own = {"from_logits": True, "axis": -1}

    def _elements(self, F, pred, label):
        pred = pred if self._from_logits else F.log_softmax(pred, axis=self._axis)
        return label * (F.log(label + 1e-12) - pred)


class HuberLoss(Loss):
    """L2 up to rho, then L1."""

    own = {"rho": 1}

    def _elements(self, F, pred, label):
        loss = F.abs(label - pred)
        return F.where(loss > self._rho, loss - 0.5 * self._rho, (0.5 / self._rho) * F.square(loss))


class HingeLoss(Loss):
    """max(0, margin - pred * label), labels 1 and -1."""

    own = {"margin": 1}

    def _elements(self, F, pred, label):
        return F.relu(self._margin - pred * label)


SigmoidBCELoss, SoftmaxCELoss = SigmoidBinaryCrossEntropyLoss, SoftmaxCrossEntropyLoss
