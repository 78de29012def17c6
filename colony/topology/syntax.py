"""Syntax: the tree of an expression, as small as it can be and of a form that can be trusted.

celpy's parser gives the tree. Here parentheses and nodes that say nothing go, chains of `&&` and
`||` become flat, and what the CEL language definition refuses and celpy accepts is refused.
"""

from typing import TypeAlias, cast

from celpy.celparser import CELParseError, CELParser
from celpy.evaluation import Activation, CELEvalError, Evaluator
from lark import Token, Tree

from colony.errors import ExpressionError, ExpressionTooLarge

Node: TypeAlias = Tree[Token]

MAX_BYTES = 4096
MAX_DEPTH = 32

ROOTS = frozenset({"context", "hop"})
MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})

# A node of one of these with a single child says nothing; each spares the evaluator five frames.
_CHAIN = frozenset(
    "expr conditionalor conditionaland relation addition multiplication unary member".split()
)
_LEVELS = _CHAIN | frozenset(
    "member_dot member_dot_arg member_index ident_arg list_lit map_lit".split()
)
_LOGICAL = frozenset({"conditionaland", "conditionalor"})
# A leading dot asks for the outermost scope, which is the only one here.
_UNDOTTED = {"dot_ident": "ident", "dot_ident_arg": "ident_arg"}


def parse(source: str) -> Node:
    """The tree of `source`; raises ExpressionTooLarge above 4 KiB or depth 32, ExpressionError for
    what is not CEL.
    """
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise ExpressionTooLarge(what="a length of", size=size, limit=MAX_BYTES)
    try:
        tree = CELParser().parse(source)
    except CELParseError as error:
        raise ExpressionError(detail=_parse_detail(source, error)) from error
    return _simplify(tree, 0, source)


def trees(node: Node) -> list[Node]:
    """The children of a node that are nodes."""
    return [child for child in node.children if isinstance(child, Tree)]


def inner(node: Node) -> Node:
    """The first child of a node."""
    return cast(Node, node.children[0])


def identifier(node: Node) -> str | None:
    """The name that a node is, where it is nothing but a name."""
    if node.data != "primary" or inner(node).data != "ident":
        return None
    return str(inner(node).children[0])


def call(node: Node) -> tuple[str, list[Node]]:
    """Name and arguments of a call of a function such as `int(x)`; no name where it is none."""
    if node.data != "primary" or inner(node).data != "ident_arg":
        return "", []
    arguments = trees(inner(node))
    return str(inner(node).children[0]), trees(arguments[0]) if arguments else []


def method(node: Node) -> tuple[str, Node, list[Node]]:
    """Name, target and arguments of `x.contains(y)`; no name where it is none."""
    if node.data != "member_dot_arg":
        return "", node, []
    target, *arguments = trees(node)
    return str(node.children[1]), target, trees(arguments[0]) if arguments else []


def selection(node: Node) -> tuple[Node, str]:
    """`hop` and "x" of `hop.x`."""
    return inner(node), str(node.children[1])


def excerpt(source: str, node: Node | Token) -> str:
    """The part of `source` that `node` was parsed from."""
    place = node if isinstance(node, Token) else node.meta
    return source[place.start_pos : place.end_pos]


def literal(node: Node) -> object:
    """The CEL value of a literal."""
    return Evaluator(node, Activation()).literal(node)


def _simplify(node: Node, depth: int, source: str) -> Node:
    while True:
        if node.data in _CHAIN and len(node.children) == 1:
            node = inner(node)
        elif node.data == "primary" and inner(node).data == "paren_expr":
            node, depth = inner(inner(node)), depth + 1
        else:
            break
        _check_depth(depth)
    depth += node.data in _LEVELS
    _check_depth(depth)
    children = _operands(node) if node.data in _LOGICAL else node.children
    simple: Node = Tree(
        _UNDOTTED.get(node.data, node.data),
        [
            _simplify(child, depth, source) if isinstance(child, Tree) else child
            for child in children
        ],
        node.meta,
    )
    _check_form(simple, source)
    return simple


def _operands(node: Node) -> list[Node | Token]:
    operands: list[Node | Token] = []
    rest = node
    while rest.data == node.data and len(rest.children) == 2:
        operands.append(rest.children[1])
        rest = inner(rest)
    return [rest, *reversed(operands)]


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionTooLarge(what="a depth of", size=depth, limit=MAX_DEPTH)


def _check_form(node: Node, source: str) -> None:
    where = excerpt(source, node)
    name, _, arguments = method(node)
    if node.data == "member_object":
        raise ExpressionError(detail=f"there are no messages to build: {where}")
    if node.data == "literal" and not _is_sound(node):
        raise ExpressionError(detail=f"a literal out of range: {where}")
    if name in MACROS and (len(arguments) != 2 or not _is_variable(arguments[0])):
        raise ExpressionError(detail=f"{name}() takes a variable and an expression: {where}")
    if call(node)[0] == "has":
        _check_has(call(node)[1], where)


def _check_has(arguments: list[Node], where: str) -> None:
    if len(arguments) == 1 and arguments[0].data == "member_dot":
        return
    minus = any(argument.data == "addition" for argument in arguments)
    hint = "; a name with a minus in it is a subtraction" if minus else ""
    raise ExpressionError(detail=f"has() takes a field such as hop.x, not {where}{hint}")


def _is_sound(node: Node) -> bool:
    try:
        value = literal(node)
        if isinstance(value, str):
            value.encode()  # half a surrogate pair could never leave this process
    except (OverflowError, UnicodeEncodeError):
        return False
    return not isinstance(value, CELEvalError)


def _is_variable(node: Node) -> bool:
    # A variable that hid a root would make every read below it ambiguous.
    return identifier(node) is not None and identifier(node) not in ROOTS


def _parse_detail(source: str, error: CELParseError) -> str:
    if not source.strip():
        return "the expression is empty"
    position = "" if error.column is None else f" at line {error.line}, column {error.column}"
    return f"not an expression{position}: {source}"
