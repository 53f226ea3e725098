"""Which language a file is in, and where its grammar and its query come from. Nothing is loaded here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class Language:
    """A language with a grammar.

    module, function: the wheel's import name and its entry point
    queries: names of its files in `queries/`, without their suffix
    suffixes, filenames, interpreters: how its files are told (lower case, with the dot; `#!` command names)
    """

    name: str
    module: str
    queries: tuple[str, ...]
    suffixes: tuple[str, ...]
    function: str = "language"
    filenames: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()


GRAMMARS = (
    Language(
        "python", "tree_sitter_python", ("python",), (".py", ".pyi", ".pyw"),
        filenames=("sconstruct", "sconscript", "wscript"), interpreters=("python", "pypy"),
    ),
    Language(
        "javascript", "tree_sitter_javascript", ("javascript",), (".js", ".mjs", ".cjs", ".jsx"),
        interpreters=("node", "nodejs", "bun"),
    ),
    Language(
        "typescript", "tree_sitter_typescript", ("typescript",), (".ts", ".mts", ".cts"),
        function="language_typescript", interpreters=("deno", "ts-node"),
    ),
    Language("tsx", "tree_sitter_typescript", ("typescript", "tsx"), (".tsx",), function="language_tsx"),
    Language("go", "tree_sitter_go", ("go",), (".go",)),
    Language("rust", "tree_sitter_rust", ("rust",), (".rs",)),
    Language("java", "tree_sitter_java", ("java",), (".java",)),
    Language("c", "tree_sitter_c", ("c",), (".c", ".h")),
    Language(
        "cpp", "tree_sitter_cpp", ("cpp",),
        (".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".h++", ".ipp", ".tpp", ".inl", ".cu", ".cuh"),
    ),
    Language("csharp", "tree_sitter_c_sharp", ("csharp",), (".cs", ".csx")),
    Language(
        "ruby", "tree_sitter_ruby", ("ruby",), (".rb", ".rake", ".gemspec", ".ru"),
        filenames=("rakefile", "gemfile", "guardfile", "vagrantfile", "podfile"),
        interpreters=("ruby", "jruby"),
    ),
    Language(
        "php", "tree_sitter_php", ("php",), (".php", ".phtml", ".php5"),
        function="language_php", interpreters=("php",),
    ),
    Language("scala", "tree_sitter_scala", ("scala",), (".scala", ".sc", ".sbt")),
    Language("swift", "tree_sitter_swift", ("swift",), (".swift",)),
    Language("kotlin", "tree_sitter_kotlin", ("kotlin",), (".kt", ".kts")),
    Language("lua", "tree_sitter_lua", ("lua",), (".lua",), interpreters=("lua", "luajit")),
    Language(
        "bash", "tree_sitter_bash", ("bash",), (".sh", ".bash", ".zsh", ".ksh", ".bats"),
        filenames=(".bashrc", ".bash_profile", ".profile", ".zshrc"),
        interpreters=("sh", "bash", "dash", "zsh", "ksh"),
    ),
)  # fmt: skip

BY_NAME = {language.name: language for language in GRAMMARS}

SECTIONED = {
    "markdown": (".md", ".markdown", ".mdx", ".mkd"),
    "json": (".json", ".jsonc", ".json5", ".ipynb", ".webmanifest", ".geojson"),
    "yaml": (".yaml", ".yml"),
    "toml": (".toml",),
    "html": (".html", ".htm", ".xhtml", ".vue", ".svelte"),
    "css": (".css", ".scss", ".less"),
    "sql": (".sql", ".ddl", ".dml"),
}
"""Languages without a grammar here: sections by line patterns (`sections`). Everything else is text."""

_BY_SUFFIX = {suffix: language.name for language in GRAMMARS for suffix in language.suffixes} | {
    suffix: name for name, suffixes in SECTIONED.items() for suffix in suffixes
}
_BY_FILENAME = {filename: language.name for language in GRAMMARS for filename in language.filenames}
_BY_INTERPRETER = {command: language.name for language in GRAMMARS for command in language.interpreters}

_SHEBANG = re.compile(rb"#![ \t]*(?:\S*/env[ \t]+(?:-\S+[ \t]+)*)?(?:\S*/)?([A-Za-z][A-Za-z-]*)")
_CPP_HEADER = re.compile(
    rb"^[ \t]*(?:class[ \t]+\w|namespace\b|template[ \t]*<|using[ \t]+\w|(?:public|private|protected)[ \t]*:)"
    rb"|\b(?:std::|constexpr\b|noexcept\b|nullptr\b|virtual[ \t])|#[ \t]*include[ \t]*<\w+>",
    re.MULTILINE,
)


def language_by_name(path: str) -> str | None:
    """Language that the name of `path` says; None if the name says nothing."""
    name = PurePosixPath(path).name.lower()
    return _BY_FILENAME.get(name) or _BY_SUFFIX.get(PurePosixPath(name).suffix)


def detect_language(path: str, data: bytes) -> str:
    """Language of a file by its name, then by its first line; "text" if neither tells.

    A `.h` file is C++ if it uses what only C++ has: the C grammar makes nonsense of that.
    """
    language = language_by_name(path)
    if language is None:
        shebang = _SHEBANG.match(data[:256])
        return _BY_INTERPRETER.get(shebang[1].decode().lower(), "text") if shebang else "text"
    if language == "c" and path.lower().endswith(".h") and _CPP_HEADER.search(data):
        return "cpp"
    return language
