"""What two clients of others make of a server's streams: `python peer_clients.py BASE_URL` prints one JSON.

Runs in an environment of the dependency group `peers` alone, where nothing of this package is installed.
"""
# pyright: basic, reportMissingImports=false

import json
import sys
from typing import Any

import huggingface_hub
import openai

ASKED: dict[str, Any] = {"model": "reference", "max_tokens": 5, "stream_options": {"include_usage": True}}
MESSAGES: Any = [{"role": "user", "content": "one two three"}]


def seen(chunks: list[Any], text_of: Any) -> dict[str, Any]:
    """Texts, reasons and usage of a stream of chunks."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    return {
        "text": "".join(text_of(choice) or "" for choice in choices),
        "reasons": [choice.finish_reason for choice in choices if choice.finish_reason],
        "usage": [[usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] for usage in usages],
        "ids": len({chunk.id for chunk in chunks}),
    }


def by_openai(url: str) -> dict[str, Any]:
    """OpenAI's package: models, chat, completions, errors."""
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        chat = list(client.chat.completions.create(messages=MESSAGES, stream=True, **ASKED))
        text = list(client.completions.create(prompt="one two three", stream=True, **ASKED))
        errors: dict[str, str] = {}
        for name, wrong in {"model": {"model": "other"}, "max_tokens": {"max_tokens": 0}}.items():
            try:
                client.chat.completions.create(messages=MESSAGES, stream=True, **{**ASKED, **wrong})
            except openai.APIStatusError as error:
                errors[name] = f"{type(error).__name__} {error.body['message']}"  # type: ignore[index]
        return {
            "models": [model.id for model in client.models.list()],
            "chat": seen(chat, lambda choice: choice.delta.content),
            "completions": seen(text, lambda choice: choice.text),
            "errors": errors,
        }


def by_huggingface(url: str) -> dict[str, Any]:
    """Hugging Face's client, which reads events line by line with a parser of its own: chat, an error."""
    client = huggingface_hub.InferenceClient(base_url=url, api_key="unused")
    chat = list(client.chat_completion(MESSAGES, stream=True, **ASKED))
    try:
        list(client.chat_completion(MESSAGES, stream=True, **{**ASKED, "model": "other"}))
        error = ""
    except huggingface_hub.errors.HfHubHTTPError as refused:
        error = str(refused)
    return {"chat": seen(chat, lambda choice: choice.delta.content), "error": error}


if __name__ == "__main__":
    print(json.dumps({"openai": by_openai(sys.argv[1]), "huggingface": by_huggingface(sys.argv[1])}))
