"""instructor, in the modes that it has for OpenAI's two APIs and for Anthropic's."""

import anthropic
import instructor
import openai
import pytest
from forecast import ASK, Weather, check
from instructor import Mode

MODES = [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS, Mode.ANTHROPIC_TOOLS]
# Any JSON, the schema only in the prompt: such a small model needs to be shown what to write.
SHOWN = [{"role": "user", "content": 'Write only this JSON: {"city": "Paris", "days": 3}'}]


def asker(mode, server):
    options = {"api_key": "none", "max_retries": 0, "timeout": 300}
    if mode.name.startswith("ANTHROPIC"):
        client, zero = anthropic.Anthropic(base_url=server.url, **options), {"extra_body": {"temperature": 0}}
        return instructor.from_anthropic(client, mode=mode), zero
    return instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", **options), mode=mode), {"temperature": 0}


@pytest.mark.parametrize("mode", [*MODES, Mode.JSON], ids=lambda m: m.name)
def test_a_model_is_filled(server, mode):
    client, zero = asker(mode, server)
    fields = {"model": "smol", "messages": SHOWN if mode == Mode.JSON else ASK, "response_model": Weather, "max_retries": 0,
              "max_tokens": 200}
    forecast, raw = client.chat.completions.create_with_completion(**fields, **zero)
    check(forecast)
    assert raw.model == "smol" and raw.usage
