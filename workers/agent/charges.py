"""Charges: what a call of a model took, counted against the run and its session."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from colony.agent.in_hand import RunInHand
from workers.toolloop.params import HandlerParams


class Price(HandlerParams):
    """What a million tokens cost that a model is sent, and that it gives."""

    input: Annotated[float, Field(ge=0)] = 0.0
    output: Annotated[float, Field(ge=0)] = 0.0


Prices = Mapping[str, Price]


@dataclass(frozen=True, slots=True)
class Charge:
    """The tokens of a call, as its provider counted them; none where it did not."""

    model: str
    read: int
    given: int


def charge(hop: Mapping[str, object], prices: Prices, run: RunInHand) -> Charge:
    """Count what a call took, whether an answer came of it or not."""
    model = str(hop.get("model") or run.session.model)
    read, given = number(hop.get("tokens_prompt")), number(hop.get("tokens_completion"))
    price = prices.get(model, Price())
    used = {
        "input_tokens": read,
        "output_tokens": given,
        # A price for a million tokens is one for a token in millionths.
        "cost_micro": round(read * price.input + given * price.output),
    }
    run.count(**used)
    run.count_in_session(**used)
    return Charge(model, read, given)


def number(found: object) -> int:
    """A count that a header holds; 0 where it holds none."""
    return int(found) if isinstance(found, (int, float)) and found > 0 else 0
