"""When: a point in time as somebody writes it: so long ago, or a date."""

import re
import time
from datetime import datetime
from typing import Any, Final

import click

_AGE = re.compile(r"(\d{1,9})(s|min|h|d)")
_UNIT_S: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


class When(click.ParamType[int]):
    """`90s`, `15min`, `2h` or `3d` ago, or a date with or without a time; in milliseconds."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds since the epoch."""
        if isinstance(value, int):
            return value
        if found := _AGE.fullmatch(value):
            ago_s = int(found[1]) * _UNIT_S[found[2]]
            return max(0, round((time.time() - ago_s) * 1000))
        try:
            # Without a zone it is that of this host, as times are printed.
            return max(0, round(datetime.fromisoformat(value).timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            return self.fail(f"{value!r} is neither 90s, 15min, 2h, 3d nor a date", param, ctx)
