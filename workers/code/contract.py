"""What a cell's contract says of the emissions of one envelope: all of them leave, or none does."""

from collections.abc import Sequence

from colony.contract import broken_promises
from colony.envelope import Emission
from colony.topology.model import Contract
from workers.code.outcome import Failure, Outcome


def check(emissions: Sequence[Emission], contract: Contract | None) -> Outcome:
    """`emissions`, if the contract allows every one of them; no contract allows everything."""
    if contract is None:
        return emissions
    if len(emissions) > 1 and not contract.multi_send_capable:
        detail = f"{len(emissions)} emissions, and the contract does not declare multi_send_capable"
        return Failure("multi_send_not_declared", detail)
    found = [problem for emission in emissions for problem in broken_promises(emission, contract)]
    return Failure("contract_violation", "; ".join(found)) if found else emissions
