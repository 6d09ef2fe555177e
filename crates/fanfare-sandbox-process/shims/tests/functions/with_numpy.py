import numpy  # noqa: F401
from counts_imports import handler  # noqa: F401
