"""Constraints on parameters and values of distributions: names for arg_constraints, each with check(value).

>>> import pydist
>>> from pydist.distributions import constraints
>>> constraints.unit_interval.check(pydist.tensor([0.5, 2.0])).tolist()
[True, False]
"""

from pydist.distributions.distribution import _CHECKS


class Constraint(str):
    """A name, a function that says whether a value is valid, and the number of dimensions of an element."""

    event_dim, is_discrete = 0, False

    def __new__(cls, name, check, event_dim=0, is_discrete=False):
        new = super().__new__(cls, name)
        new._check, new.event_dim, new.is_discrete = check, event_dim, is_discrete
        return new

    def check(self, value):
        """True for elements of value that satisfy the constraint."""
        return self._check(value)

    def __repr__(self):
        return f"Constraint({str(self)!r})"


def _known(name, event_dim=0, is_discrete=False):
    return Constraint(name, _CHECKS[name], event_dim, is_discrete)


real, positive, nonnegative = _known("real"), _known("positive"), _known("nonnegative")
unit_interval, boolean = _known("probability"), _known("boolean", is_discrete=True)
nonnegative_integer, simplex = _known("count", is_discrete=True), _known("simplex", 1)
real_vector = Constraint("real_vector", lambda v: (v == v).all(-1), 1)
positive_integer = Constraint("positive_integer", lambda v: (v >= 1) & (v % 1 == 0), is_discrete=True)
dependent = Constraint("dependent", lambda v: v == v)
lower_triangular = Constraint("lower_triangular", lambda v: (v.tril() == v).all(-1).all(-1), 2)
lower_cholesky = Constraint(
    "lower_cholesky", lambda v: (v.tril() == v).all(-1).all(-1) & (v.diagonal(0, -2, -1) > 0).all(-1), 2
)
positive_definite = Constraint(
    "positive_definite",
    lambda v: ((v - v.transpose(-2, -1)).abs() <= 1e-6 * v.abs()).all(-1).all(-1) & (v.diagonal(0, -2, -1) > 0).all(-1),
    2,
)


def interval(lower_bound, upper_bound):
    """From lower_bound to upper_bound, both included."""
    return Constraint(f"interval({lower_bound}, {upper_bound})", lambda v: (v >= lower_bound) & (v <= upper_bound))


def half_open_interval(lower_bound, upper_bound):
    """From lower_bound (included) to upper_bound (excluded)."""
    return Constraint(
        f"half_open_interval({lower_bound}, {upper_bound})", lambda v: (v >= lower_bound) & (v < upper_bound)
    )


def integer_interval(lower_bound, upper_bound):
    """Integers from lower_bound to upper_bound, both included."""
    return Constraint(
        f"integer_interval({lower_bound}, {upper_bound})",
        lambda v: (v % 1 == 0) & (v >= lower_bound) & (v <= upper_bound),
        is_discrete=True,
    )


def greater_than(lower_bound):
    """Greater than lower_bound."""
    return Constraint(f"greater_than({lower_bound})", lambda v: v > lower_bound)


def greater_than_eq(lower_bound):
    """At least lower_bound."""
    return Constraint(f"greater_than_eq({lower_bound})", lambda v: v >= lower_bound)


def less_than(upper_bound):
    """Less than upper_bound."""
    return Constraint(f"less_than({upper_bound})", lambda v: v < upper_bound)


def independent(base_constraint, reinterpreted_batch_ndims):
    """base_constraint for all elements of the last dimensions."""
    n = reinterpreted_batch_ndims
    return Constraint(
        f"independent({base_constraint}, {n})",
        lambda v: base_constraint.check(v).all(tuple(range(-n, 0))) if n else base_constraint.check(v),
        base_constraint.event_dim + n,
        base_constraint.is_discrete,
    )
