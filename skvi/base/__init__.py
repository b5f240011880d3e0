"""Ground: components, layouts of the parameter vector, draws, normals, units."""

from skvi.base._component import Component
from skvi.base._draw import SIDES, Draw, Side
from skvi.base._gamma_form import GammaForm
from skvi.base._layout import Block, Layout
from skvi.base._normal_form import NormalForm
from skvi.base._units import Units

__all__ = [
    "SIDES",
    "Block",
    "Component",
    "Draw",
    "GammaForm",
    "Layout",
    "NormalForm",
    "Side",
    "Units",
]
