"""The templates of the pages. Every text that enters one is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_FOLDER = Path(__file__).parent


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A style sheet is no text of a run: escaped, its selectors would break.
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    found.globals["style"] = Markup(style)
    return found


def render(name: str, **values: object) -> str:
    """A template with these values; one that it lacks is an error."""
    return _environment().get_template(name).render(**values)
