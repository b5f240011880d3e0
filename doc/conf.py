import os

import skvi

project = "skvi"
author = "the skvi developers"
copyright = "2026, the skvi developers"
version = release = skvi.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
]
# Links into other packages' pages, whose inventories are fetched: builds work offline.
if os.environ.get("SKVI_DOC_LINKS"):
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "scipy": ("https://docs.scipy.org/doc/scipy", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
exclude_patterns = ["_build", "README.md"]
templates_path = ["_templates"]
default_role = "py:obj"  # a link where the name has a page, else code

autodoc_typehints = "none"  # numpydoc states the types, with shapes
numpydoc_show_class_members = False  # the class template lists them
toc_object_entries_show_parents = "hide"
# Terms of scikit-learn's glossary, in docstrings that are inherited from it.
suppress_warnings = ["ref.term"]

html_theme = "pydata_sphinx_theme"
html_title = "skvi"
html_theme_options = {
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Section navigation only where there is a section, and room.
WIDE = ("index", "install", "choose", "gallery", "api", "search")
html_sidebars = {page: [] for page in WIDE}


def skip_foreign_member(app, what, name, obj, skip, options):
    """Leave out the members that skvi inherits from other packages."""
    module = getattr(getattr(obj, "fget", obj), "__module__", None) or "skvi"
    return True if module.split(".")[0] != "skvi" else None


def link_short_name(app, env, node, content):
    """Link a name without its module, if one class or function has it."""
    domain, target = env.get_domain("py"), node.get("reftarget", "")
    paths = [
        path
        for path, entry in domain.objects.items()
        if path.endswith(f".{target}")
        and entry.objtype in ("class", "function")
        and not entry.aliased  # the private module that defines it
    ]
    if node.get("reftype") == "obj" and len(paths) == 1:
        at = node.get("refdoc", ""), app.builder, "obj", paths[0], node, content
        return domain.resolve_xref(env, *at)
    return None


def setup(app):
    app.connect("autodoc-skip-member", skip_foreign_member)
    app.connect("missing-reference", link_short_name)
