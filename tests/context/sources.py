"""A small repository for tests of references."""

from __future__ import annotations

from pathlib import Path

SHAPES = '''"""Shapes."""

import math


class Circle:
    """Round."""

    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius**2


class Square:
    def area(self):
        return self.side**2


def double(shape):
    return 2 * shape.area()
'''
MAIN = "from shapes import Circle, double\n\n\ndef main():\n    print(double(Circle(3)))\n"
NOTES = "Notes on ünïcode\r\nand CRLF, no line feed at the end"


def write(root: Path, **files: str | bytes) -> Path:
    """A folder with `shapes.py`, `app/main.py`, `notes.txt` and more."""
    contents: dict[str, str | bytes] = {
        "shapes.py": SHAPES,
        "app/main.py": MAIN,
        "notes.txt": NOTES,
        **files,
    }
    for path, content in contents.items():
        full = root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content.encode() if isinstance(content, str) else content)
    return root
