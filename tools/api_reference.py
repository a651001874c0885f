"""The pages of the API reference: one for each public package, with every name of its `__all__`.

A page has directives. mkdocstrings replaces them by signatures and docstrings, which it reads from the source without
importing it. So it cannot know the arguments that a source or sink inherits from its options: they are a table.
"""

from __future__ import annotations

import re
from importlib import import_module

import penstock
from penstock.options import Options
from tools.template_page import argument_table

_NOT_PACKAGES = ("__all__", "pipelines")
"""What the docstring of `penstock` has in backquotes besides packages; `pipelines` has no names for users."""


def packages() -> list[str]:
    """Return the packages that users import from, as the docstring of `penstock` names them."""
    found = re.findall(r"`([a-z._]+)`", penstock.__doc__ or "")
    return sorted(f"penstock.{name}" for name in found if name not in _NOT_PACKAGES)


def pages() -> dict[str, str]:
    """Return the Markdown text of each page by its path in the site."""
    return {f"api/{name.removeprefix('penstock.')}.md": _page(name) for name in packages()}


def title(page: str) -> str:
    """Return how the navigation calls a page."""
    return page.removeprefix("api/").removesuffix(".md")


def _page(package: str) -> str:
    module = import_module(package)
    parts = [f"# `{package}`", f"::: {package}\n    options: {{members: false, show_root_heading: false}}"]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, Options) and value is not Options:
            parts.append(
                f"::: {package}.{name}\n    options: {{members: false, merge_init_into_class: false}}"
            )
            parts.append(argument_table(value))
        else:
            parts.append(f"::: {package}.{name}")
    return "\n\n".join(parts) + "\n"
