"""The functions and classes of a Python repository, as documentation tools see them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True, eq=False)
class PyObject:
    """A function, method or class.

    path: file and names, `pkg/a.py/Class/method`; code: its lines, indentation kept, decorators left out
    parent: the object around it; children: those right inside it
    """

    path: str
    file: str
    name: str
    node: Definition
    code: str
    parent: PyObject | None = None
    children: list[PyObject] = field(default_factory=list)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def parameters(self) -> list[str]:
        if isinstance(self.node, ast.ClassDef):
            return []
        arguments = self.node.args
        return [
            a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg != "self"
        ]

    @property
    def returns(self) -> bool:
        """Whether a `return` with a value stands in its code, as far as text tells."""
        return any(line.strip().startswith("return ") for line in self.code.splitlines())

    def is_related(self, other: PyObject) -> bool:
        """One lies in the other, or they are the same."""
        return other.path == self.path or _inside(self, other) or _inside(other, self)


@dataclass(slots=True, eq=False)
class PyFile:
    """A parsed file: its tree, and its objects, each after those around it."""

    path: str
    tree: ast.Module
    objects: list[PyObject]


def parse_files(sources: Mapping[str, str]) -> list[PyFile]:
    """Files (path to text) in order of their paths; those that are no valid Python are left out."""
    files = []
    for path in sorted(sources):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # the repository's business
                tree = ast.parse(sources[path])
        except (SyntaxError, ValueError):
            continue
        lines = sources[path].split("\n")
        files.append(PyFile(path, tree, list(_objects(tree, path, path, lines, None))))
    return files


def _objects(
    node: ast.AST, path: str, file: str, lines: list[str], parent: PyObject | None
) -> Iterator[PyObject]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            assert child.end_lineno is not None
            code = "".join(f"{line}\n" for line in lines[child.lineno - 1 : child.end_lineno])
            made = PyObject(f"{path}/{child.name}", file, child.name, child, code, parent)
            if parent is not None:
                parent.children.append(made)
            yield made
            yield from _objects(child, made.path, file, lines, made)
        else:
            yield from _objects(child, path, file, lines, parent)


def _inside(inner: PyObject, outer: PyObject) -> bool:
    around = inner.parent
    while around is not None:
        if around is outer:
            return True
        around = around.parent
    return False
