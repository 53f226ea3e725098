"""The manifests in docs/deploy are what Kubernetes and this version of agentcache take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agentcache.engine import transfer_config
from agentcache.settings import WORKER_KEY, EngineSettings

FOLDER = Path(__file__).parents[1] / "docs" / "deploy"
VERSION = "1.31"
_FLAG = "--kv-transfer-config="


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_manifest_is_valid(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_validation_can_fail() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def servers() -> list[tuple[list[str], list[dict[str, Any]]]]:
    """Arguments and environment of vLLM in each of the files."""
    (deployed,) = [one for one in documents() if one["kind"] == "StatefulSet"]
    container = deployed["spec"]["template"]["spec"]["containers"][0]
    values = yaml.safe_load((FOLDER / "production-stack.yaml").read_text())
    (model,) = values["servingEngineSpec"]["modelSpec"]
    return [(container["args"], container["env"]), (model["vllmConfig"]["extraArgs"], model["env"])]


@pytest.mark.parametrize(("arguments", "environment"), servers(), ids=["kubernetes", "production-stack"])
def test_vllm_is_started_as_serve_starts_it(arguments: list[str], environment: list[dict[str, Any]]) -> None:
    (given,) = [json.loads(one.removeprefix(_FLAG)) for one in arguments if one.startswith(_FLAG)]
    settings = EngineSettings.from_dict(given["kv_connector_extra_config"])
    ours = transfer_config(settings)
    assert given | {"kv_connector_extra_config": settings.to_dict()} == ours
    assert settings.remote_url.startswith("redis://")
    assert "--scheduling-policy=priority" in arguments
    named = {one["name"]: one for one in environment}
    assert named["VLLM_PLUGINS"]["value"] == "agentcache"
    assert "valueFrom" in named[WORKER_KEY], "the secret is no part of the manifest"


def test_every_server_is_named_to_the_router() -> None:
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in documents()}
    servers = by_name["StatefulSet", "vllm"]["spec"]
    router = by_name["Deployment", "router"]["spec"]["template"]["spec"]["containers"][0]
    urls = {one for one in router["args"] if one.startswith("http")}
    assert urls == {f"http://vllm-{n}.{servers['serviceName']}:8000" for n in range(servers["replicas"])}
