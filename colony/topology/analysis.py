"""Analysis: what the text of an expression says before any header is seen.

It walks the tree that `syntax.parse` gives. A key is a pair of root and name,
("hop", "route"); the name is WHOLE where a root is read as a map or by a computed index.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TypeAlias

from lark import Token
from pydantic import JsonValue

from colony.topology.cel import to_json
from colony.topology.cel_functions import NAMES, TYPES
from colony.topology.syntax import (
    MACROS,
    ROOTS,
    Node,
    call,
    identifier,
    inner,
    literal,
    method,
    selection,
    trees,
)

Key: TypeAlias = tuple[str, str]
Keys: TypeAlias = frozenset[Key]
Literals: TypeAlias = tuple[JsonValue, ...]

WHOLE = "*"

_NO_KEYS: Keys = frozenset()
_MIRRORED = {"relation_gt": "relation_lt", "relation_ge": "relation_le"}


def reads(tree: Node) -> Keys:
    """The header keys on which the value of the expression depends."""
    return frozenset(key for key, _ in _reads(tree, _NO_KEYS))


def unguarded_reads(tree: Node) -> Keys:
    """The header keys that are read where nothing to their left made sure that they exist."""
    return frozenset(key for key, guarded in _reads(tree, _NO_KEYS) if not guarded)


def guarantees(tree: Node) -> Keys:
    """The header keys that exist whenever the expression is true."""
    return _present(tree, True)


def undeclared(tree: Node) -> frozenset[str]:
    """The names that are no header root, no type and no function: whatever reads one fails."""
    return frozenset(_undeclared(tree, ROOTS | TYPES.keys()))


def comparisons(tree: Node) -> Mapping[Key, Literals]:
    """For a key that must equal one of some literals for the expression to be true: those."""
    found: dict[Key, Literals] = {}
    for conjunct in _conjuncts(tree):
        alternatives = _alternatives(conjunct)
        if alternatives is not None:
            key, literals = alternatives
            found[key] = _common(found[key], literals) if key in found else literals
    return found


def exclusions(tree: Node) -> Mapping[Key, Literals]:
    """By key, the literals it must not equal: by `!=`, or by a comparison that is negated."""
    found: dict[Key, dict[str, JsonValue]] = {}
    for key, literals in _excluded(tree, False):
        found.setdefault(key, {}).update((repr(value), value) for value in literals)
    return {key: tuple(values.values()) for key, values in found.items()}


def upper_bounds(tree: Node) -> Mapping[Key, int]:
    """For a key that must be below an integer for the expression to be true: that integer.

    The key is compared as it is or by way of `int()`.
    """
    found: dict[Key, int] = {}
    for conjunct in _conjuncts(tree):
        bound = _bound(conjunct)
        if bound is not None:
            key, limit = bound
            found[key] = min(limit, found.get(key, limit))
    return found


def landmarks(tree: Node) -> Mapping[Key, Literals]:
    """By key, every literal it is held against anywhere, as it is or by way of `int()`."""
    found: dict[Key, dict[str, JsonValue]] = {}
    for key, literals in _held_against(tree):
        found.setdefault(key, {}).update((repr(value), value) for value in literals)
    return {key: tuple(values.values()) for key, values in found.items()}


def subtractions(tree: Node) -> tuple[str, ...]:
    """What looks like a key with a minus in its name and is a subtraction: `hop.tool-name`."""
    return tuple(dict.fromkeys(_subtractions(tree)))


def bare_key(tree: Node) -> Key | None:
    """The key that the expression is, where it is nothing but a key."""
    return _key(tree)


def _reads(node: Node, known: Keys) -> Iterator[tuple[Key, bool]]:
    key, tested = _key(node), _tested(node)
    if key is not None:
        yield key, key in known
    elif tested is not None:
        yield tested, True
    elif identifier(node) in ROOTS:
        yield (str(identifier(node)), WHOLE), False
    elif call(node)[0] == "has":
        yield from _reads(selection(call(node)[1][0])[0], known)
    elif node.data in ("conditionaland", "conditionalor"):
        for operand in trees(node):
            yield from _reads(operand, known)
            known |= _present(operand, node.data == "conditionaland")
    elif node.data == "expr":
        condition, then, otherwise = trees(node)
        yield from _reads(condition, known)
        yield from _reads(then, known | _present(condition, True))
        yield from _reads(otherwise, known | _present(condition, False))
    else:
        for child in trees(node):
            yield from _reads(child, known)


def _present(node: Node, outcome: bool | None) -> Keys:
    """The keys that exist if the node is true, is false, or (None) at least is no error."""
    key, tested = _key(node), _tested(node)
    if key is not None:
        return frozenset({key})
    if tested is not None:
        return frozenset({tested}) if outcome else _NO_KEYS
    if node.data in ("conditionaland", "conditionalor"):
        parts = [_present(operand, outcome) for operand in trees(node)]
        # Only a true && and a false || say something of every operand; else one may be an error.
        every = outcome is (node.data == "conditionaland")
        return reduce(frozenset.union if every else frozenset.intersection, parts)
    if node.data == "unary" and inner(node).data == "unary_not":
        return _present(trees(node)[1], None if outcome is None else not outcome)
    if call(node)[0] == "has":
        return _present(selection(call(node)[1][0])[0], None)
    # Of a choice only the condition is evaluated for sure, of a macro only its target.
    first_only = node.data == "expr" or method(node)[0] in MACROS
    operands = trees(node)[:1] if first_only else trees(node)
    return _NO_KEYS.union(*(_present(operand, None) for operand in operands))


def _undeclared(node: Node, declared: frozenset[str]) -> Iterator[str]:
    name, (function, _) = identifier(node), call(node)
    if name is not None and name not in declared:
        yield name
    if function and function not in NAMES:
        yield function
    macro, target, arguments = method(node)
    if macro in MACROS:
        yield from _undeclared(target, declared)
        yield from _undeclared(arguments[1], declared | {str(identifier(arguments[0]))})
        return
    if macro and macro not in NAMES:
        yield macro
    for child in trees(node):
        yield from _undeclared(child, declared)


def _subtractions(node: Node) -> Iterator[str]:
    if node.data == "addition":
        operation, right = trees(node)
        key, name = _key(trees(operation)[0]), identifier(right)
        if operation.data == "addition_sub" and key is not None and name is not None:
            yield f"{key[0]}.{key[1]}-{name}"
    for child in trees(node):
        yield from _subtractions(child)


def _alternatives(node: Node) -> tuple[Key, Literals] | None:
    if node.data == "conditionalor":
        parts = [_alternatives(operand) for operand in trees(node)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({key for key, _ in known}) > 1:
            return None
        return known[0][0], tuple(literal for _, literals in known for literal in literals)
    operator, left, right = _relation(node)
    if operator == "relation_eq":
        for one, other in ((left, right), (right, left)):
            key, literals = _key(one), _literals([other])
            if key is not None and literals is not None:
                return key, literals
    items = _list_items(right) if operator == "relation_in" else None
    if items is not None:
        key, literals = _key(left), _literals(items)
        if key is not None and literals is not None:
            return key, literals
    return None


def _excluded(node: Node, negated: bool) -> Iterator[tuple[Key, Literals]]:
    if node.data == "unary" and inner(node).data == "unary_not":
        negated = not negated
    operator, _, _ = _relation(node)
    against = {"relation_eq": negated, "relation_in": negated, "relation_ne": not negated}
    if against.get(operator, False):
        yield from _held_against(node)
        return
    for child in trees(node):
        yield from _excluded(child, negated)


def _held_against(node: Node) -> Iterator[tuple[Key, Literals]]:
    name, target, arguments = method(node)
    _, left, right = _relation(node)
    pairs = [(target, arguments)] if name else [(left, [right]), (right, [left])]
    for one, others in pairs:
        key = _key(_counter(one))
        listed = _list_items(others[0]) if len(others) == 1 else None
        literals = _literals(others if listed is None else listed)
        if key is not None and literals:
            yield key, literals
    for child in trees(node):
        yield from _held_against(child)


def _bound(node: Node) -> tuple[Key, int] | None:
    operator, left, right = _relation(node)
    if operator in _MIRRORED:
        operator, left, right = _MIRRORED[operator], right, left
    if operator not in ("relation_lt", "relation_le"):
        return None
    key, literals = _key(_counter(left)), _literals([right])
    if key is None or literals is None or type(literals[0]) is not int:
        return None
    return key, literals[0] + (operator == "relation_le")


def _counter(node: Node) -> Node:
    """`hop.x` of `int(hop.x)`; any other node is itself."""
    function, arguments = call(node)
    return arguments[0] if function == "int" and len(arguments) == 1 else node


def _list_items(node: Node) -> list[Node] | None:
    if node.data != "primary" or inner(node).data != "list_lit":
        return None
    return [item for listed in trees(inner(node)) for item in trees(listed)]


def _common(some: Literals, others: Literals) -> Literals:
    return tuple(one for one in some if any(_same(one, other) for other in others))


def _same(one: JsonValue, other: JsonValue) -> bool:
    # True and 1 are equal in Python and not in CEL.
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _conjuncts(tree: Node) -> Iterator[Node]:
    if tree.data == "conditionaland":
        for operand in trees(tree):
            yield from _conjuncts(operand)
    else:
        yield tree


def _relation(node: Node) -> tuple[str, Node, Node]:
    if node.data != "relation":
        return "", node, node
    operation, right = trees(node)
    return str(operation.data), trees(operation)[0], right


def _key(node: Node) -> Key | None:
    """The key that `hop.x` or `hop['x']` reads."""
    if node.data not in ("member_dot", "member_index"):
        return None
    root, selected = identifier(inner(node)), node.children[1]
    if root not in ROOTS:
        return None
    name = str(selected) if isinstance(selected, Token) else _string(selected)
    return None if name is None else (str(root), name)


def _tested(node: Node) -> Key | None:
    """The key of which `has(hop.x)` or `'x' in hop` asks whether it exists."""
    function, arguments = call(node)
    if function == "has":
        return _key(arguments[0])
    operator, left, right = _relation(node)
    root, name = identifier(right), _string(left)
    if operator == "relation_in" and root in ROOTS and name is not None:
        return str(root), name
    return None


def _literals(nodes: list[Node]) -> Literals | None:
    if all(_is_literal(node) for node in nodes):
        return tuple(to_json(literal(inner(node))) for node in nodes)
    return None


def _string(node: Node) -> str | None:
    literals = _literals([node])
    return literals[0] if literals and isinstance(literals[0], str) else None


def _is_literal(node: Node) -> bool:
    if node.data != "primary" or inner(node).data != "literal":
        return False
    token = inner(node).children[0]
    return isinstance(token, Token) and token.type != "BYTES_LIT"
