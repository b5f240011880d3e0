"""Ground: components, the layout of the parameter vector, the normal form, units."""

from skvi.base._component import Component
from skvi.base._layout import Block, Layout
from skvi.base._normal_form import NormalForm
from skvi.base._units import Units

__all__ = ["Block", "Component", "Layout", "NormalForm", "Units"]
