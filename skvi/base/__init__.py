"""Foundations: components, rows, layouts of parameters, draws, normals, units."""

from skvi.base._draw import Draw
from skvi.base._layout import Layout
from skvi.base._normal_form import NormalForm

__all__ = ["Draw", "Layout", "NormalForm"]
