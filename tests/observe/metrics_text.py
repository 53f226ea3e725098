"""Reading metrics and the dashboard that draws them."""

from __future__ import annotations

import json
import re
from pathlib import Path

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "agentcache.json"


def names_in(text: str) -> set[str]:
    """Names of all series in a `/metrics` answer."""
    return {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line[:1] not in "#"}


def value_of(text: str, name: str, **labels: str) -> float:
    """Sum of the series with this name and these labels."""
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if re.match(rf"{name}[{{ ]", line)
        and all(f'{key}="{value}"' in line for key, value in labels.items())
    ]
    assert found, f"no {name} with {labels}"
    return sum(found)


def names_in_dashboard() -> set[str]:
    """Metrics that its queries use."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return {name for query in queries for name in re.findall(r"\b(?:agentcache|vllm)[:_][a-z_]+", query)}
