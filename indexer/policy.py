"""What is left out by convention, and what must never be indexed: vendored, generated, binary, secret.

Names are judged before a file is opened, content when it has been read. Reasons are the stable keys of
`IndexReport.skipped`.
"""

from __future__ import annotations

import re
from fnmatch import translate

from agentcache.indexer.languages import BY_NAME
from agentcache.indexer.lines import is_wide

IGNORED = "ignored"
AGENTCACHE_IGNORED = "agentcacheignore"
TOO_LARGE = "too_large"
BINARY = "binary"
GENERATED = "generated"
VENDORED = "vendored"
SECRET = "secret"
SYMLINK = "symlink"
OUTSIDE = "outside_root"
SPECIAL = "special_file"
NESTED = "nested_repository"

REASONS = {
    IGNORED: "ignored by git or .gitignore",
    AGENTCACHE_IGNORED: "listed in .agentcacheignore",
    TOO_LARGE: "larger than the limit",
    BINARY: "binary",
    GENERATED: "generated",
    VENDORED: "somebody else's code",
    SECRET: "looks like a secret",
    SYMLINK: "a link to another place in this root",
    OUTSIDE: "a link out of this root",
    SPECIAL: "no regular file",
    NESTED: "a repository or worktree of its own",
}
"""Every reason, in words."""

VERSION_CONTROL = frozenset((".git", ".hg", ".svn", ".bzr", ".jj"))

_VENDORED_DIRS = frozenset(
    (
        "node_modules", "bower_components", "jspm_packages", "vendor", "third_party", "third-party",
        "_vendor", "site-packages", "dist-packages", ".venv", ".virtualenv", "pods", "carthage",
        "elm-stuff", ".bundle", ".yarn", ".pnpm-store", ".cargo",
    )
)  # fmt: skip
_GENERATED_DIRS = frozenset(
    (
        "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox", ".nox",
        ".gradle", ".next", ".nuxt", ".svelte-kit", ".parcel-cache", ".turbo", ".terraform",
        ".ipynb_checkpoints", ".eggs", "deriveddata", ".dart_tool", ".build", ".idea", ".vs",
    )
)  # fmt: skip
_BUILD_DIRS = frozenset(
    (
        "build", "dist", "target", "out", "obj",
    )
)  # fmt: skip
"""Build output where git does not say otherwise: a tracked file in such a folder is source."""

_GENERATED_FILES = (
    "*.min.js", "*.min.css", "*.map", "*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*.pb.go", "*.pb.cc",
    "*.pb.h", "*.g.dart", "*.freezed.dart", "*.designer.cs", "*.g.cs", "package-lock.json",
    "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "cargo.lock", "poetry.lock",
    "uv.lock", "pdm.lock", "pipfile.lock", "composer.lock", "gemfile.lock", "podfile.lock",
    "package.resolved", "go.sum", "flake.lock", "mix.lock", "gradle.lockfile",
)  # fmt: skip
_SECRET_FILES = (
    ".env", ".env.*", ".env-*", ".envrc", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks",
    "*.keystore", "*.kdbx", "*.ovpn", "*.ppk", "*.asc", "*.gpg", "*.tfstate", "*.tfstate.*", "*.tfvars",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "credentials",
    "credentials.json", "credentials.ini", "credentials.y*ml", "*-credentials.json",
    "*_credentials.json", ".credentials*", "client_secret*.json", "service-account*.json",
    "service_account*.json", "secrets.json", "secrets.y*ml", "secrets.toml", ".secrets*", ".netrc",
    "_netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials", ".dockercfg",
    ".dockerconfigjson", "kubeconfig", ".boto", ".s3cfg", ".vault-token", "shadow",
    "application_default_credentials.json", "master.key",
)  # fmt: skip
_SECRET_PATHS = (".ssh/", ".aws/", ".gnupg/", ".docker/config.json", ".kube/config", ".config/gcloud/")


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))


_GENERATED_NAME = _any_of(_GENERATED_FILES)
_SECRET_NAME = _any_of(_SECRET_FILES)
_GENERATED_MARK = re.compile(rb"^\W{0,8}(?:Code generated .{0,200}DO NOT EDIT|@generated\b)", re.MULTILINE)
_PRIVATE_KEY = re.compile(rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----", re.MULTILINE)

_SNIFF_BYTES = 8192


def directory_reason(name: str, *, tracked: bool = False) -> str | None:
    """Why a folder called `name` is left out with all that is in it; None if it is not."""
    name = name.lower()
    if name in _VENDORED_DIRS:
        return VENDORED
    if name in _GENERATED_DIRS or (name in _BUILD_DIRS and not tracked):
        return GENERATED
    return None


def name_reason(path: str) -> str | None:
    """Why a file is left out for its name alone; None if it is not."""
    lower = path.lower()
    name = lower.rpartition("/")[2]
    if _SECRET_NAME.fullmatch(name) or any(part in f"/{lower}" for part in _secret_parts()):
        return SECRET
    if _GENERATED_NAME.fullmatch(name):
        return GENERATED
    return None


def _secret_parts() -> tuple[str, ...]:
    return tuple(f"/{part}" for part in _SECRET_PATHS)


def content_reason(data: bytes, language: str) -> str | None:
    """Why a file is left out for what is in it; None if it is not."""
    if _is_binary(data[:_SNIFF_BYTES], language):
        return BINARY
    # Programs quote keys in tests and documents show them; a file that is one is neither.
    if language in ("text", "json", "yaml", "toml") and _PRIVATE_KEY.search(data):
        return SECRET
    if _GENERATED_MARK.search(data[:1024]):
        return GENERATED
    return None


def _is_binary(head: bytes, language: str) -> bool:
    """git's rule, a NUL near the start, but a stray NUL does not make a source file binary."""
    nuls = head.count(0)
    if not nuls or is_wide(head):
        return False
    return language not in BY_NAME or nuls * 10 > len(head)
