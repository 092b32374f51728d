"""Classification of time series in the convention of scikit-learn and aeon.

>>> from dba.sklearn import DBAClassifier
>>> model = DBAClassifier(random_state=0).fit(X, y)    # X (cases, channels, time), or a list of (time, channels)
>>> model.predict(X_new)
"""

try:
    import sklearn  # noqa: F401
except ImportError as reason:
    raise ImportError(
        "dba.sklearn: needs scikit-learn; python3 -m pip install scikit-learn, or dba[sklearn]") from reason

from .classifier import DBAClassifier

__all__ = ["DBAClassifier"]
