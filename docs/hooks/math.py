"""Equations as MathML, made when the site is built: no script has to run in the reader's browser.

`pymdownx.arithmatex` finds the LaTeX in a page and leaves code alone; this turns what it found.
"""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)


def on_page_content(html: str, **kwargs: object) -> str:
    """Turn a page's equations."""
    html = BLOCK.sub(lambda found: f'<div class="equation">{_math(found[1], "block")}</div>', html)
    return INLINE.sub(lambda found: _math(found[1], "inline"), html)


def _math(text: str, display: str) -> str:
    return convert(unescape(text).strip(), display=display)
