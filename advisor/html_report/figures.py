"""Pictures in a report: drawn twice, for a screen and for a telephone, with their figures as a table beneath."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from .canvas import NARROW, WIDE
from .markup import Markup, element

Chart = TypeVar("Chart")

_HINT = re.compile(r"<title>[^<]*</title>")


def figure(chart: Chart, draw: Callable[[Chart, int], Markup], alternative: Markup | None = None) -> Markup:
    """The picture in both widths. The narrow one has no hints: a finger does not hover, and the table has them."""
    wide, narrow = draw(chart, WIDE), draw(chart, NARROW)
    head, _, rest = narrow.partition("</title>")
    bare = Markup(f"{head}</title>{_HINT.sub('', rest)}")
    return element("figure", element("div", wide, class_="wide"), element("div", bare, class_="narrow"), alternative)
