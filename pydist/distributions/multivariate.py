"""The normal distribution of vectors."""

from pydist import _C, linalg
from pydist.distributions.distribution import Distribution, LOG_2PI


class MultivariateNormal(Distribution):
    """Density exp(-(x - loc)^T C^-1 (x - loc) / 2) / sqrt((2 pi)^k det C). C is covariance_matrix, the inverse of
    precision_matrix, or scale_tril @ scale_tril^T."""

    arg_constraints = {"loc": "real"}
    has_rsample = True

    def __init__(self, loc, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        if loc.dim() < 1 or given[0].dim() < 2:
            raise ValueError("loc must be at least one-dimensional, the matrix at least two-dimensional")
        matrix = given[0]
        if precision_matrix is not None:
            matrix = linalg.inv(precision_matrix)
        self._tril = matrix if scale_tril is not None else linalg.cholesky(matrix)
        batch = _C.matmul(self._tril, loc.unsqueeze(-1)).shape[:-2]
        k = loc.shape[-1]
        self.loc, self._tril = loc.expand((*batch, k)), self._tril.expand((*batch, k, k))
        super().__init__(batch, (k,), validate_args=validate_args)

    @property
    def scale_tril(self):
        """The lower triangular matrix L with covariance_matrix = L L^T."""
        return self._tril

    @property
    def covariance_matrix(self):
        """The covariance matrix."""
        return self._tril @ self._tril.mT

    @property
    def precision_matrix(self):
        """The inverse of the covariance matrix."""
        return linalg.inv(self.covariance_matrix)

    @property
    def mean(self):
        """The mean."""
        return self.loc

    @property
    def mode(self):
        """The most probable value."""
        return self.loc

    @property
    def variance(self):
        """The variance."""
        return (self._tril * self._tril).sum(-1)

    def rsample(self, sample_shape=()):
        noise = _C.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self):
        return self._tril.diagonal(0, -2, -1).log().sum(-1)

    def log_prob(self, value):
        away = (self._check(value) - self.loc).unsqueeze(-1)
        tril = self._tril.expand((*away.shape[:-2], *self._tril.shape[-2:]))
        z = linalg.solve_triangular(tril, away, upper=False).squeeze(-1)
        return -0.5 * (z * z).sum(-1) - self._half_log_det() - 0.5 * self._event_shape[0] * LOG_2PI

    def entropy(self):
        return 0.5 * self._event_shape[0] * (1 + LOG_2PI) + self._half_log_det()
