"""The shell of every page: one HTML file with its data, style and script in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import re
from functools import partial
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from isobatch import __version__
from isobatch.text import interval


def fill(package: str, data: dict[str, Any], **values: Any) -> str:
    """Return a package's template filled in, with the data, style and script of every page."""
    loaders = [PackageLoader(name, ".") for name in (package, "isobatch.pages")]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number, "interval": partial(interval, digits=".3f"), "unbroken": unbroken,
    }  # fmt: skip
    scripts = {"script": _file("app.js"), "plotly": _plotly()}
    return environment.get_template("template.html").render(
        **values,
        **scripts,
        data=embedded(data),
        style=_file("style.css"),
        policy=policy(*scripts.values()),
        versions=versions(),
    )


def policy(*scripts: str) -> str:
    """Return the page's Content-Security-Policy: it loads nothing and runs these scripts only.

    A second guard: were text from a file ever taken for markup, no script in it would run. Styles
    are free, since Plotly makes them as it draws.
    """
    hashes = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def number(value: float | None) -> str:
    """Return a number with four digits or all before the point, or a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}"


def unbroken(text: str) -> Markup:
    """Return a text in which browsers break neither a flag at its hyphens nor |G|² before the 2."""
    plain = str(escape(text))
    whole = r"--[a-z][\w-]*|\|G\|²"
    return Markup(re.sub(whole, r'<span class="whole">\g<0></span>', plain))


def embedded(data: Any) -> Markup:
    """Return JSON that no text in it can break out of: markup is written as escapes."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


def versions() -> dict[str, str]:
    """Return what the page was made with."""
    return {
        "Isobatch": __version__,
        "Python": platform.python_version(),
        "PyTorch": version("torch"),
    }


def _file(name: str) -> Markup:
    return Markup((resources.files("isobatch.pages") / name).read_text("utf-8"))


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())
