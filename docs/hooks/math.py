"""Equations as MathML, made when the site is built: no script has to run in the reader's browser.

`pymdownx.arithmatex` finds the LaTeX in a page and leaves code alone; this turns what it found.
"""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
BAR = re.compile("<mo>(&#x02016;|&#x0007C;)</mo>")
"""Norms and absolute values: as tall as a letter, not as their whole line."""
OPERATOR = re.compile("<mo>([a-z]{2,})</mo>")
"""min, clip, tr ...: names of functions, not signs with room on both sides."""
NAMED = re.compile(r'<mi>([a-z]{2,})</mi>(?!<mo stretchy="false">&#x00028;)')
"""The same where no bracket follows."""
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)


def on_page_content(html: str, **kwargs: object) -> str:
    """Turn a page's equations."""
    html = BLOCK.sub(lambda found: f'<div class="equation">{_math(found[1], "block")}</div>', html)
    return INLINE.sub(lambda found: _math(found[1], "inline"), html)


def _math(text: str, display: str) -> str:
    math = convert(unescape(text).strip(), display=display)
    math = BAR.sub(r'<mo stretchy="false">\1</mo>', math)
    return NAMED.sub(r'<mi>\1</mi><mspace width="0.167em" />', OPERATOR.sub(r"<mi>\1</mi>", math))
