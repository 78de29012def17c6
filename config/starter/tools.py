"""The tools of this colony."""

from typing import Literal

from colony.tool import tool


@tool(read_only=True)
def convert(amount: float, unit: Literal["miles", "pounds", "gallons"]) -> str:
    """Convert an amount of a customary unit to metric."""
    factors = {"miles": (1.609, "km"), "pounds": (0.454, "kg"), "gallons": (3.785, "l")}
    factor, metric = factors[unit]
    return f"{amount:g} {unit} are {amount * factor:.2f} {metric}"
