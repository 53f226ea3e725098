"""Prompts are what the engine would see: transformers' and vLLM's own rendering and tokens."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentcache.replay.chat import Chat, chat_of
from agentcache.replay.template import ChatTemplate
from agentcache.replay.tokenize import LineEncoder
from agentcache.replay.trace import Answer, Request

TOOLS = [
    {"name": "cat", "description": "Shows <a> file.", "parameters": {"type": "object", "properties": {}}}
]
QWEN_LIKE = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}\n{% endfor %}
{%- endif %}{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- call.function.arguments | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "chat",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be <brief> & kind."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "cat", "arguments": '{"p": "ü"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "x = 1"},
            ],
            "tools": [{"type": "function", "function": TOOLS[0]}],
        },
    ),
    (
        "responses",
        {
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "show a.py"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "I look."}],
                },
                {"type": "function_call", "name": "cat", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "x = 1"},
            ],
            "tools": [{"type": "function", **TOOLS[0]}],
        },
    ),
    (
        "messages",
        {
            "model": "m",
            "max_tokens": 5,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: 1"},
                {"type": "text", "text": "Be brief."},
            ],
            "messages": [
                {"role": "user", "content": "show a.py"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "cat", "input": {"p": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [{"type": "text", "text": "x = 1"}],
                        },
                        {"type": "text", "text": "and now?"},
                    ],
                },
            ],
            "tools": [{"name": "cat", "description": "Shows.", "input_schema": {"type": "object"}}],
        },
    ),
]


def vllm_chat(api: str, body: dict[str, Any], folder: str) -> tuple[list[Any], list[dict[str, Any]] | None]:
    """The conversation and tools that vLLM hands to the template. It changes what it is given: a copy."""
    body = copy.deepcopy(body)
    from vllm.config import ModelConfig
    from vllm.renderers.chat_utils import parse_chat_messages

    messages: Any
    if api == "responses":
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

        request = ResponsesRequest.model_validate(body)
        messages = construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
        tools = construct_tool_dicts(request.tools, request.tool_choice)
    else:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        if api == "messages":
            from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
            from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

            chat = AnthropicServingMessages.to_chat_completion_request(
                AnthropicMessagesRequest.model_validate(body), merge_inline_system=True
            )
        else:
            chat = ChatCompletionRequest.model_validate(body)
        messages = chat.messages
        tools = [tool.model_dump() for tool in chat.tools] if chat.tools else None
    plain = [m if isinstance(m, dict) else m.model_dump(exclude_none=True) for m in messages]
    return parse_chat_messages(plain, ModelConfig(model=folder), "string")[0], tools


@pytest.mark.parametrize(("api", "body"), BODIES, ids=[api for api, _ in BODIES])
def test_every_api_is_rendered_as_vllm_does(api: Any, body: dict[str, Any], folder: Path) -> None:
    pytest.importorskip("vllm")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    conversation, tools = vllm_chat(api, body, str(folder))
    chat = chat_of(Request(0, "t", 0.0, api, body, Answer()))
    for source in (QWEN_LIKE, None):
        ours = ChatTemplate(source, {}) if source else ChatTemplate.of_folder(folder)
        theirs = tokenizer.apply_chat_template(
            conversation, tools=tools, chat_template=source, add_generation_prompt=True, tokenize=False
        )
        assert ours.render(chat) == theirs


def test_templates_that_want_parts_get_parts() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", {}
    )
    chat = Chat(
        [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}], None
    )
    assert template.render(chat) == "[a][b]"


words = st.sampled_from(
    ["def f(x):", "    return x", "\n", "\n\n", " ", "\t", "a1", "=", "é", "<|im_end|>", "##", ".\n"]
)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.lists(words, max_size=30).map("".join), max_size=5))
def test_lines_encoded_once_equal_whole_texts(
    texts: list[str], session_encoder: tuple[LineEncoder, Tokenizer]
) -> None:
    encoder, tokenizer = session_encoder
    for text, encoded in zip(texts, encoder.encode(texts), strict=True):
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert encoded.ids.tolist() == whole.ids
        assert encoded.starts.tolist() == [start for start, _ in whole.offsets]


@pytest.fixture(scope="module")
def session_encoder(model_folder: str) -> tuple[LineEncoder, Tokenizer]:
    return LineEncoder.of_folder(Path(model_folder)), Tokenizer.from_file(f"{model_folder}/tokenizer.json")


def test_a_tokenizer_that_joins_lines_is_found_out() -> None:
    from tokenizers import models, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(["ab\ncd\n" * 50], trainers.BpeTrainer(vocab_size=40, special_tokens=[]))
    text = "ab\ncd\nab\ncd"
    whole = tokenizer.encode(text).ids
    assert LineEncoder(tokenizer).encode([text])[0].ids.tolist() == whole
