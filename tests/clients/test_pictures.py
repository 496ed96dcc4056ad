"""Pictures, each library's way to send one. All of them come to one prompt: who asks later finds the earlier one's."""

import base64

import anthropic
import litellm
import openai
import pytest
from coppice_process import Coppice, assert_nothing_held
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from vision_model import data_url, image_part, picture, words, write_model

FILE = picture("clients")
TEXT = words(30, 31)


@pytest.fixture(scope="module", params=["gemma3", "smolvlm"])
def seeing(request, tmp_path_factory):
    model = write_model(request.param, tmp_path_factory.mktemp(request.param))
    with Coppice("--kv-bytes", "16MiB", "--ctx", "512", "--alias", "smol", model=model) as server:
        yield server
        assert_nothing_held(server.idle_stats())


@pytest.fixture(scope="module")
def expected(seeing):
    """How long the prompt is, and what the answer."""
    body = {"messages": [{"role": "user", "content": [image_part(FILE), {"type": "text", "text": TEXT}]}], "max_tokens": 4, "temperature": 0}
    answer = seeing.post("/v1/chat/completions", body)
    return answer["usage"]["prompt_tokens"], answer["choices"][0]["message"]["content"]


def test_openai(seeing, expected):
    client = openai.OpenAI(base_url=seeing.url + "/v1", api_key="none")
    for detail in ("auto", "high"):
        part = {"type": "image_url", "image_url": {"url": data_url(FILE), "detail": detail}}
        chat = client.chat.completions.create(model="smol", max_tokens=4, temperature=0, messages=[
            {"role": "user", "content": [part, {"type": "text", "text": TEXT}]}])
        assert (chat.usage.prompt_tokens, chat.choices[0].message.content) == expected
        assert chat.usage.prompt_tokens_details.cached_tokens == expected[0] - 1
    content = [{"type": "input_image", "image_url": data_url(FILE), "detail": "auto"}, {"type": "input_text", "text": TEXT}]
    response = client.responses.create(model="smol", max_output_tokens=4, temperature=0, input=[{"role": "user", "content": content}])
    assert (response.usage.input_tokens, response.output_text) == expected


def test_anthropic(seeing, expected):
    client = anthropic.Anthropic(base_url=seeing.url, api_key="none")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(FILE).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]}]
    answer = client.messages.create(model="smol", max_tokens=4, messages=messages, extra_body={"temperature": 0})
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == expected[0]
    assert "".join(block.text for block in answer.content) == expected[1]
    assert client.messages.count_tokens(model="smol", messages=messages).input_tokens == expected[0]


@pytest.mark.parametrize("part", [
    image_part(FILE),
    {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": base64.b64encode(FILE).decode()},
], ids=["image_url", "image"])
def test_langchain(seeing, expected, part):
    model = ChatOpenAI(base_url=seeing.url + "/v1", api_key="none", model="smol", max_tokens=4, temperature=0)
    message = HumanMessage([part, {"type": "text", "text": TEXT}])
    answer = model.invoke([message])
    assert (answer.usage_metadata["input_tokens"], answer.content) == expected
    assert "".join(chunk.content for chunk in model.stream([message])) == expected[1]


@pytest.mark.parametrize("way", ["openai", "hosted_vllm", "anthropic"])
def test_litellm(seeing, expected, way):
    base = seeing.url if way == "anthropic" else seeing.url + "/v1"
    answer = litellm.completion(model=f"{way}/smol", api_base=base, api_key="none", temperature=0, max_tokens=4, messages=[
        {"role": "user", "content": [image_part(FILE), {"type": "text", "text": TEXT}]}])
    assert (answer.usage.prompt_tokens, answer.choices[0].message.content or "") == expected
