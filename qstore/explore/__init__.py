"""Look at stores from a notebook or a shell, without ever writing to them."""

from qstore.explore.doctor import Finding, doctor
from qstore.explore.opening import open_view
from qstore.explore.view import View

__all__ = ["Finding", "View", "doctor", "open_view"]
