"""Foundations: components, rows, layouts of parameters, draws, normals, units."""

from skvi.base._bijections import Bijection, Exp, Identity, Softplus
from skvi.base._component import Component
from skvi.base._draw import SIDES, Draw, Side
from skvi.base._gamma_form import GammaForm
from skvi.base._layout import ROLES, Block, Layout
from skvi.base._normal_form import NormalForm
from skvi.base._rows import Rows, deal
from skvi.base._units import Units

__all__ = [
    "ROLES",
    "SIDES",
    "Bijection",
    "Block",
    "Component",
    "Draw",
    "Exp",
    "GammaForm",
    "Identity",
    "Layout",
    "NormalForm",
    "Rows",
    "Side",
    "Softplus",
    "Units",
    "deal",
]
