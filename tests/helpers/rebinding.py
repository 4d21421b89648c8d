"""What a module rebinds that is not its own: attributes of libraries, and methods and classes of objects it was given.

Read from the syntax alone. Objects and values are known by where they come from: an import, a lookup, a class or a
function of ours. Any other object, a parameter without an annotation or what a call gives, is taken for one that
somebody else made; any other value for data, which may be put into it.
"""

import ast
from collections.abc import Iterator

LIBRARIES = {"openrlhf", "vllm", "deepspeed", "ray", "transformers", "torch", "wandb"}
OURS = "openrlhf_cov"
FOREIGN, OBJECT, CLASS, CALLABLE = "foreign", "object of ours", "class of ours", "callable"

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
LOOKUPS = {"importlib.import_module", "import_module", "__import__", "sys.modules.get"}
# What is made of these is nobody else's.
EMPTY = {"ModuleType", "types.ModuleType", "SimpleNamespace", "types.SimpleNamespace"}
MAKES_CALLABLES = {"partial", "partialmethod", "wraps", "update_wrapper", "MethodType", "staticmethod", "classmethod"}
MODULES = "sys.modules"
HOOKS = ("register_forward_hook", "register_forward_pre_hook")

# Name, or ``self.name``, or ``.name`` for a method of ours -> what it stands for.
Known = dict[str, str]


def rebound(tree: ast.Module) -> Iterator[str]:
    """Every rebinding, as written: of ``a.b = c``, ``a.b``; of ``setattr(a, b, c)``, ``setattr(a, ...)``.

    - any attribute of a library, of a module that is looked up by name, and the entries of ``sys.modules``
    - an attribute of any other object but ours, where the new value is a function, a method, a class of ours, or made
      of the old one, or where its name is that of a class
    - hooks of a forward pass

    ``self.x = ...`` and attributes of objects and classes of ours are nobody else's. Not seen: what is made of the old
    value by way of a name, targets of ``for`` and ``with``, ``sys.modules |= ...``.
    """
    nodes = list(ast.walk(tree))
    methods = {each.name for each in nodes if isinstance(each, FUNCTIONS) and not _is_property(each)}
    called = [each.func for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)]
    methods |= {each.attr for each in called if _is_self(each.value)}
    yield from _of_scope(tree, {f".{name}": CALLABLE for name in methods})


def _of_scope(scope: ast.AST, outer: Known) -> Iterator[str]:
    nodes = list(_inside(scope))
    known = _known(scope, nodes, outer)
    for node in nodes:
        yield from _of_node(node, known)
    for node in nodes:
        if isinstance(node, FUNCTIONS | ast.Lambda | ast.ClassDef):
            yield from _of_scope(node, known)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module, class or function; of those inside of it the node alone."""
    body = scope.body if isinstance(scope.body, list) else [scope.body]
    left = list(reversed(body))
    while left:
        node = left.pop()
        yield node
        if isinstance(node, FUNCTIONS | ast.ClassDef):
            left += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            left += reversed(list(ast.iter_child_nodes(node)))


def _known(scope: ast.AST, nodes: list[ast.AST], outer: Known) -> Known:
    """``outer``, and what is bound in ``scope``."""
    known = dict(outer)
    for _ in range(2):  # what is bound may come from what is bound below
        kinds: dict[str, list[str | None]] = {}
        for name, kind in _bindings(scope, nodes, known):
            kinds.setdefault(name, []).append(kind)
        known = outer | {name: kind for name, found in kinds.items() if (kind := _together(found))}
        known = {name: kind for name, kind in known.items() if name not in kinds or _together(kinds[name])}
    return known


def _together(kinds: list[str | None]) -> str | None:
    """What a name stands for that is bound several times: for an object of ours if it always does."""
    return next(
        (kind for kind in (FOREIGN, CALLABLE, CLASS) if kind in kinds), kinds[0] if len({*kinds}) == 1 else None
    )


def _bindings(scope: ast.AST, nodes: list[ast.AST], known: Known) -> Iterator[tuple[str, str | None]]:
    """(Name, what it stands for) of all that is bound in ``scope``, None where that cannot be told."""
    if isinstance(scope, FUNCTIONS | ast.Lambda):
        for each in ast.walk(scope.args):
            if isinstance(each, ast.arg):
                yield each.arg, _annotated(each.annotation, known)
    if isinstance(scope, ast.ClassDef):
        for node in (each for each in ast.walk(scope) if isinstance(each, ast.Assign | ast.AnnAssign)):
            for target, kind in _assigned_kinds(node, known):
                if isinstance(target, ast.Attribute) and _is_self(target.value):
                    yield ast.unparse(target), kind
                elif isinstance(target, ast.Name) and node in scope.body:
                    yield f"self.{target.id}", kind
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)
        elif isinstance(node, ast.ClassDef):
            yield node.name, CLASS
        elif isinstance(node, FUNCTIONS):
            yield node.name, CALLABLE
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target, kind in _assigned_kinds(node, known):
                if isinstance(target, ast.Name):
                    yield target.id, kind
        elif isinstance(node, ast.NamedExpr | ast.For | ast.comprehension | ast.withitem):
            target = node.optional_vars if isinstance(node, ast.withitem) else node.target
            value = getattr(node, "iter", getattr(node, "value", None))
            for each in ast.walk(target) if target else ():
                if isinstance(each, ast.Name):
                    yield each.id, _kind(value, known) if value and each is target else None


def _assigned_kinds(node: ast.Assign | ast.AnnAssign, known: Known) -> Iterator[tuple[ast.AST, str | None]]:
    """(Target, what it then stands for), but for those that become None."""
    annotated = _annotated(getattr(node, "annotation", None), known)
    for target, value in _assigned(node):
        if annotated or not (isinstance(value, ast.Constant) and value.value is None):
            yield target, annotated or (value and _kind(value, known))


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str | None]]:
    for alias in node.names:
        name = alias.asname or alias.name.split(".")[0]
        top = (getattr(node, "module", None) or alias.name).split(".")[0]
        if top in LIBRARIES:
            yield name, FOREIGN
        elif top == OURS and isinstance(node, ast.ImportFrom) and not alias.name.isupper():
            yield name, CLASS if alias.name[0].isupper() else CALLABLE
        else:
            yield name, None


def _annotated(annotation: ast.AST | None, known: Known) -> str | None:
    """What has that type."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    names = [ast.unparse(each) for each in ast.walk(annotation) if isinstance(each, ast.Name)] if annotation else []
    if "Callable" in names or "type" in names:
        return CALLABLE
    return OBJECT if any(known.get(name) == CLASS for name in names) else None


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """(Target, its value where it is written out) of what an assignment or ``del`` binds."""
    left = [(target, getattr(node, "value", None)) for target in getattr(node, "targets", None) or [node.target]]
    while left:
        target, value = left.pop(0)
        if not isinstance(target, ast.Tuple | ast.List):
            yield target.value if isinstance(target, ast.Starred) else target, value
            continue
        values = getattr(value, "elts", [])
        fit = len(values) == len(target.elts) and not any(isinstance(each, ast.Starred) for each in target.elts)
        left += zip(target.elts, values if fit else [None] * len(target.elts), strict=True)


def _kind(value: ast.AST, known: Known) -> str | None:
    """What an expression stands for."""
    if isinstance(value, ast.Lambda):
        return CALLABLE
    if isinstance(value, ast.Name):
        return known.get(value.id)
    if isinstance(value, ast.IfExp | ast.BoolOp):
        kinds = [_kind(each, known) for each in getattr(value, "values", [])] or [
            _kind(value.body, known),
            _kind(value.orelse, known),
        ]
        return next(filter(None, kinds), None)
    if isinstance(value, ast.NamedExpr):
        return _kind(value.value, known)
    if isinstance(value, ast.Subscript):
        return FOREIGN if ast.unparse(value.value) == MODULES else None
    if isinstance(value, ast.Attribute):
        base = OBJECT if _is_self(value.value) else _kind(value.value, known)
        if base == FOREIGN:
            return FOREIGN
        return known.get(ast.unparse(value)) or (known.get(f".{value.attr}") if base in (OBJECT, CLASS) else None)
    return _kind_of_result(value, known) if isinstance(value, ast.Call) else None


def _kind_of_result(call: ast.Call, known: Known) -> str | None:
    called = ast.unparse(call.func)
    if called in LOOKUPS:
        return FOREIGN
    if called in EMPTY:
        return OBJECT
    if called == f"{MODULES}.values" or (called in ("list", "tuple", "set") and call.args):
        return FOREIGN if not call.args else _kind(call.args[0], known)
    if called == "getattr" and len(call.args) > 1:
        name = getattr(call.args[1], "value", None)
        if isinstance(name, str):
            return _kind(ast.Attribute(call.args[0], name), known)
        return FOREIGN if _kind(call.args[0], known) == FOREIGN else None
    makes = call.func.func if isinstance(call.func, ast.Call) else call.func  # wraps(f)(g)
    if getattr(makes, "attr", getattr(makes, "id", None)) in MAKES_CALLABLES:
        return CALLABLE
    if isinstance(call.func, ast.Attribute) and _kind(call.func.value, known) == CLASS:
        return OBJECT  # of a class method
    return OBJECT if _kind(call.func, known) == CLASS else None


def _of_node(node: ast.AST, known: Known) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return
        for target, value in _assigned(node):
            if isinstance(target, ast.Attribute):
                if _rebinds(target.value, target.attr, None if isinstance(node, ast.AugAssign) else value, known):
                    yield ast.unparse(target)
            elif isinstance(target, ast.Subscript) and _is_table(target.value, known):
                yield f"{ast.unparse(target.value)}[...]"
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in ("setattr", "delattr") or called.endswith((".__setattr__", ".__delattr__")):
            base, name, value = [*node.args[:3], None, None, None][:3]
            if base is not None and _rebinds(base, getattr(name, "value", None), value, known):
                yield f"{called}({ast.unparse(base)}, ...)"
        elif getattr(node.func, "attr", None) in ("update", "setdefault", "pop", "clear"):
            yield from [called] if _is_table(node.func.value, known) else ()
    elif isinstance(node, ast.Attribute) and node.attr in HOOKS:
        yield node.attr


def _rebinds(base: ast.AST, name: str | None, value: ast.AST | None, known: Known) -> bool:
    """True if attribute ``name`` of ``base`` (None: one that is computed) is somebody else's, and code."""
    kind = _kind(base, known)
    if _is_self(base) or kind in (OBJECT, CLASS):
        return False
    if kind == FOREIGN or known.get(_root(base)) == FOREIGN:
        return True
    if name and (name == "__class__" or (name[0].isupper() and not name.isupper())):
        return True
    if value is None:
        return False
    if _kind(value, known) in (CALLABLE, CLASS):
        return True
    return isinstance(value, ast.Call) and (name is None or _is_made_of(value, base, name))


def _is_made_of(value: ast.Call, base: ast.AST, name: str) -> bool:
    """True if the call is about the attribute that is assigned to."""
    old = {f"{ast.unparse(base)}.{name}", f"getattr({ast.unparse(base)}, {name!r})"}
    return any(ast.unparse(each) in old for each in value.args[:1])


def _is_table(value: ast.AST, known: Known) -> bool:
    """True of ``sys.modules``, and of the names that a library or a module has."""
    if ast.unparse(value) == MODULES:
        return True
    if isinstance(value, ast.Attribute) and value.attr == "__dict__":
        return _kind(value.value, known) == FOREIGN
    is_vars = isinstance(value, ast.Call) and ast.unparse(value.func) == "vars" and len(value.args) == 1
    return is_vars and _kind(value.args[0], known) == FOREIGN


def _is_self(value: ast.AST) -> bool:
    return ast.unparse(value) in ("self", "cls", "super()")


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", None)


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) or "setter" in ast.unparse(each) for each in function.decorator_list)
