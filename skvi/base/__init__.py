"""Foundations: components, rows, layouts of parameters, draws, normals, units."""

from skvi.base._bijections import Exp, Softplus
from skvi.base._component import Component
from skvi.base._draw import Draw
from skvi.base._layout import Block, Layout
from skvi.base._normal_form import NormalForm
from skvi.base._rows import Rows

__all__ = [
    "Block",
    "Component",
    "Draw",
    "Exp",
    "Layout",
    "NormalForm",
    "Rows",
    "Softplus",
]
