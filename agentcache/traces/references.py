"""Which objects of a Python repository mention which others: names, imports, `self.`, annotated variables.

Not a type checker: what a name leads to is followed through imports and base classes; an attribute of something
unknown counts where only one class has a method of that name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentcache.traces.pyobjects import Definition, PyFile, PyObject

Target = PyObject | PyFile


@dataclass(slots=True)
class References:
    """callees: objects that an object mentions; callers: objects, and paths of files, that mention it. In order."""

    callees: dict[PyObject, list[PyObject]] = field(default_factory=lambda: defaultdict(list))
    callers: dict[PyObject, list[PyObject | str]] = field(default_factory=lambda: defaultdict(list))


def find_references(files: Sequence[PyFile]) -> References:
    """All references between objects that do not lie in one another."""
    resolver = _Resolver(files)
    found = References()
    for file in files:
        for owner, targets in resolver.mentions(file):
            for target in targets:
                if isinstance(owner, PyObject):
                    if owner.is_related(target):
                        continue
                    if target not in found.callees[owner]:
                        found.callees[owner].append(target)
                who: PyObject | str = owner if isinstance(owner, PyObject) else owner.path
                if who not in found.callers[target]:
                    found.callers[target].append(who)
    return found


class _Resolver:
    def __init__(self, files: Sequence[PyFile]) -> None:
        self._files = files
        self._modules = {name: file for file in files for name in _module_names(file.path)}
        self._top = {id(file): _top_objects(file) for file in files}
        self._aliases = {id(file): self._imports(file) for file in files}
        self._methods: dict[str, list[PyObject]] = defaultdict(list)
        self._object_of: dict[int, PyObject] = {}
        for file in files:
            for one in file.objects:
                self._object_of[id(one.node)] = one
                if one.parent is not None and one.parent.is_class:
                    self._methods[one.name].append(one)

    def mentions(self, file: PyFile) -> Iterator[tuple[Target, list[PyObject]]]:
        """For the file's top level and each object: what is mentioned there and in no object inside it."""
        yield file, list(self._in_body(file, file, file.tree))
        for one in file.objects:
            yield one, list(self._in_body(file, one, one.node))

    def _in_body(self, file: PyFile, owner: Target, node: ast.AST) -> Iterator[PyObject]:
        types = self._types(file, node) if isinstance(owner, PyObject) else {}
        for inner in _own_nodes(node):
            if isinstance(inner, ast.Name):
                target = self._name(file, inner.id)
                if isinstance(target, PyObject):
                    yield target
            elif isinstance(inner, ast.Attribute):
                yield from self._attribute(file, owner, inner, types)
            elif isinstance(inner, ast.ImportFrom):
                for alias in inner.names:
                    target = self._name(file, alias.asname or alias.name)
                    if isinstance(target, PyObject):
                        yield target

    def _attribute(
        self, file: PyFile, owner: Target, node: ast.Attribute, types: dict[str, PyObject]
    ) -> Iterator[PyObject]:
        base = node.value
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name):
            if base.func.id == "super" and isinstance(owner, PyObject):
                yield from self._inherited(file, _class_around(owner), node.attr, own=False)
                return
            target = self._name(file, base.func.id)
            if isinstance(target, PyObject) and target.is_class:
                yield from self._inherited(file, target, node.attr)
                return
        if isinstance(base, ast.Name):
            if base.id in ("self", "cls") and isinstance(owner, PyObject):
                yield from self._inherited(file, _class_around(owner), node.attr)
                return
            target = types.get(base.id) or self._name(file, base.id)
            if isinstance(target, PyFile):
                inner = self._top[id(target)].get(node.attr)
                if inner is not None:
                    yield inner
                return
            if isinstance(target, PyObject):
                yield from self._inherited(file, target, node.attr)
                return
        known = self._methods.get(node.attr, ())
        if len(known) == 1:
            yield known[0]

    def _inherited(
        self, file: PyFile, owner: PyObject | None, name: str, own: bool = True, depth: int = 8
    ) -> Iterator[PyObject]:
        """The method called `name` of a class, or of the first base that has one."""
        if owner is None or not isinstance(owner.node, ast.ClassDef) or depth == 0:
            return
        if own:
            found = next((child for child in owner.children if child.name == name), None)
            if found is not None:
                yield found
                return
        home = next((one for one in self._files if one.path == owner.file), file)
        for base in owner.node.bases:
            while isinstance(base, ast.Subscript):
                base = base.value
            target = self._name(home, base.id) if isinstance(base, ast.Name) else None
            if isinstance(target, PyObject):
                inherited = list(self._inherited(home, target, name, depth=depth - 1))
                if inherited:
                    yield from inherited
                    return

    def _types(self, file: PyFile, node: ast.AST) -> dict[str, PyObject]:
        """Classes of variables that are annotated, or assigned from a call of the class."""
        types: dict[str, PyObject] = {}
        for inner in ast.walk(node):
            name, kind = None, None
            if isinstance(inner, ast.arg):
                name, kind = inner.arg, inner.annotation
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                name, kind = inner.target.id, inner.annotation
            elif isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Call):
                first = inner.targets[0]
                name, kind = (first.id if isinstance(first, ast.Name) else None), inner.value.func
            while isinstance(kind, ast.Subscript):
                kind = kind.value
            target = self._name(file, kind.id) if name and isinstance(kind, ast.Name) else None
            if name and isinstance(target, PyObject) and target.is_class:
                types[name] = target
        return types

    def _name(self, file: PyFile, name: str, depth: int = 8) -> Target | None:
        """What a name at the top of a file stands for; followed through imports."""
        own = self._top[id(file)].get(name)
        if own is not None or depth == 0:
            return own
        imported = self._aliases[id(file)].get(name)
        if imported is None:
            return None
        module, inner = imported
        if inner is None:
            return module
        return self._name(module, inner, depth - 1) or self._module_inside(module, inner)

    def _module_inside(self, module: PyFile, name: str) -> PyFile | None:
        folder = module.path.removesuffix("__init__.py")
        return next((one for one in self._files if one.path == f"{folder}{name}.py"), None)

    def _imports(self, file: PyFile) -> dict[str, tuple[PyFile, str | None]]:
        """Local name to (file it is of, name in it; None for the file itself)."""
        found: dict[str, tuple[PyFile, str | None]] = {}
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom):
                module = self._modules.get(_absolute(file.path, node))
                for alias in node.names if module is not None else ():
                    assert module is not None
                    found[alias.asname or alias.name] = module, alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    module = self._modules.get(alias.name)
                    if module is not None:
                        found[alias.asname or alias.name] = module, None
        return found


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, less those inside definitions; decorators, defaults and annotations are its own."""
    stack = list(ast.iter_child_nodes(node))[::-1]
    while stack:
        inner = stack.pop()
        yield inner
        if not isinstance(inner, Definition):
            stack.extend(list(ast.iter_child_nodes(inner))[::-1])


def _class_around(one: PyObject) -> PyObject | None:
    around: PyObject | None = one
    while around is not None and not around.is_class:
        around = around.parent
    return around


def _top_objects(file: PyFile) -> dict[str, PyObject]:
    return {one.name: one for one in file.objects if one.parent is None}


def _module_names(path: str) -> Iterator[str]:
    """Every dotted name a file may be imported by: `src/a/b.py` is `src.a.b`, `a.b` and `b`."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    for first in range(len(parts)):
        yield ".".join(parts[first:])


def _absolute(path: str, node: ast.ImportFrom) -> str:
    """The dotted name that a `from` import is from."""
    if not node.level:
        return node.module or ""
    parts = path.split("/")[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])
