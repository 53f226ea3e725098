"""What makes a program talk to the endpoint: environment variables, and settings in a folder that goes away again.

The user's own settings are not changed: programs that keep settings in a folder are given another folder. A client
that none of this reaches takes its settings from its command line (docs/clients says which).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

NO_KEY = "unused"
"""For programs that refuse to start without a key, where the endpoint wants none."""
_PROVIDER = "agentcache"
_LONGEST_ANSWER = 2048


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url: without path; model: as clients call it; context: tokens of prompt and answer; key: "" for none"""

    url: str
    model: str
    context: int
    key: str = ""

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def answer_tokens(self) -> int:
        """What a client may ask for and still have room for its prompt."""
        return min(_LONGEST_ANSWER, self.context // 4)


def environment(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    """Variables to add to a program's environment. Writes the settings files that they name into `folder`."""
    key = endpoint.key or NO_KEY
    return (
        {
            # OpenAI's SDKs and most that build on them; the second name is litellm's and older SDKs'
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_BASE": endpoint.base_url,
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": endpoint.model,
            "ANTHROPIC_BASE_URL": endpoint.url,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_API_KEY": "",  # the user's own key must not travel; the token is what counts
            "ANTHROPIC_MODEL": endpoint.model,
            "NO_PROXY": "127.0.0.1,localhost,::1",
            "no_proxy": "127.0.0.1,localhost,::1",
        }
        | _aider(endpoint)
        | _mini_swe_agent(endpoint, folder / "mini-swe-agent")
        | _claude_code(endpoint, folder / "claude-code")
        | _opencode(endpoint, folder / "opencode")
        | _codex(endpoint, folder / "codex")
        | _qwen_code(endpoint, folder / "qwen-code")
    )


def _aider(endpoint: Endpoint) -> dict[str, str]:
    return {
        "AIDER_MODEL": f"openai/{endpoint.model}",
        "AIDER_WEAK_MODEL": f"openai/{endpoint.model}",
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
    }


def _mini_swe_agent(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    return {
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder),
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_MODEL_NAME": f"openai/{endpoint.model}",
        "MSWEA_COST_TRACKING": "ignore_errors",  # the model has no price
    }


def _claude_code(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    return {
        "CLAUDE_CONFIG_DIR": str(folder),
        "ANTHROPIC_SMALL_FAST_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": endpoint.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(endpoint.answer_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _opencode(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    model = {
        "name": endpoint.model,
        "limit": {"context": endpoint.context, "output": endpoint.answer_tokens},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        "options": {"baseURL": endpoint.base_url, "apiKey": endpoint.key or NO_KEY},
        "models": {endpoint.model: model},
    }
    name = f"{_PROVIDER}/{endpoint.model}"
    settings = {
        "provider": {_PROVIDER: provider},
        "model": name,
        "small_model": name,
        "share": "disabled",
        "autoupdate": False,
    }
    return {"OPENCODE_CONFIG": _written(folder / "opencode.json", json.dumps(settings, indent=2))}


def _codex(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    settings = f"""model = {json.dumps(endpoint.model)}
model_provider = "{_PROVIDER}"
model_context_window = {endpoint.context}
check_for_update_on_startup = false

[model_providers.{_PROVIDER}]
name = "{_PROVIDER}"
base_url = {json.dumps(endpoint.base_url)}
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[analytics]
enabled = false
"""
    _written(folder / "config.toml", settings)
    return {"CODEX_HOME": str(folder)}


def _qwen_code(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {
            "name": endpoint.model,
            "generationConfig": {"samplingParams": {"max_tokens": endpoint.answer_tokens}},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        "telemetry": {"enabled": False},
    }
    return {
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": _written(folder / "settings.json", json.dumps(settings, indent=2))
    }


def _written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)
