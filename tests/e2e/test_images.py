"""Pictures over HTTP, of tiny random vision models: what the model's authors' code says of one, all APIs, one encode and one prefill for all
who ask about a picture, and what is refused."""

import base64
import json
import shutil
import struct
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from coppice_process import TIMEOUT_S, Coppice, assert_nothing_held, binary, device
from vision_model import SERVED, data_url, fixture_picture, image_part, noise, picture, png, served, words, write_model

# A GPU has blocks of its own size, rounds rows to 16 bits, and takes the models in other shapes, and not all of them.
ON_GPU = device() != []
BLOCK = 32 if ON_GPU else 8
OPTIONS = ["--kv-bytes", "16MiB", "--ctx", "512", "--check-every", "1", "--block-size", str(BLOCK)]
OF_GPUS = [name for name in SERVED if not name.startswith(("gemma4", "qwen35"))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            write_model(name, made[name], wide=ON_GPU)
        return made[name]

    return folder


def server_fixture(name):
    """A server of this fixture's model, for the whole file."""

    @pytest.fixture(scope="module")
    def server_of(folders):
        with Coppice(*OPTIONS, model=folders(name) / "model.gguf") as server:
            yield server

    return server_of


gemma, smolvlm, qwen25vl, qwen3vl, qwen35 = map(server_fixture, ("gemma3", "smolvlm", "qwen25vl", "qwen3vl", "qwen35"))


@pytest.fixture(params=["gemma", "smolvlm"])
def server(request):
    return request.getfixturevalue(request.param)


def text(string):
    return {"type": "text", "text": string}


def chat(server, *parts, **more):
    body = {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/chat/completions", body | more)


def refused(server, path, body):
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post(path, body)
    return caught.value.code, json.loads(caught.value.read())["error"]


def refused_chat(server, *parts, **more):
    return refused(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 4} | more)


def metrics(server):
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def counted(server):
    figures = metrics(server)
    return {name: int(figures[f"coppice_{name}_total"]) for name in ("images_decoded", "image_encodes", "image_cache_hits", "computed_tokens")}


def since(server, before):
    server.idle_stats()  # figures may be a step old
    return {name: value - before[name] for name, value in counted(server).items()}


def encodes(server):
    """Of one picture of 128 x 64: SmolVLM cuts it into two tiles beside its overview."""
    return 3 if "smolvlm" in server.log.read_text().split("images: projector")[1].splitlines()[0] else 1


@pytest.mark.parametrize("name, wide", [*(() if ON_GPU else ((name, False) for name in SERVED)), *((name, True) for name in OF_GPUS)])
def test_what_the_authors_code_says_of_a_picture(name, wide, tmp_path):
    expected = served(name)
    model = write_model(name, tmp_path, facts=expected.get("projector"), wide=wide)
    near, far = (0.1, 0.1) if ON_GPU else (1.5e-2, 3e-2)
    rows = ["--image-min-tokens", "4", "--image-max-tokens", "64"] if name.startswith(("gemma4", "qwen")) else []
    parts = [text(words(*expected["before"])), image_part(fixture_picture(name)), text(words(*expected["behind"]))]
    with Coppice(*OPTIONS, *rows, model=model) as server:
        for _ in range(2):  # computed; then from the cache
            answer = chat(server, *parts, max_tokens=len(expected["tokens"]), logprobs=True)
            choice = answer["choices"][0]
            assert choice["message"]["content"] == words(*expected["tokens"])
            seen = [token["logprob"] for token in choice["logprobs"]["content"]]
            assert seen == pytest.approx(expected["logprobs"], abs=near)
        assert answer["usage"]["prompt_tokens"] == expected["symbols"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        other = chat(server, parts[0], image_part(picture(1, 80, 48)), parts[2], max_tokens=len(expected["tokens"]), logprobs=True)
        seen = [token["logprob"] for token in other["choices"][0]["logprobs"]["content"]]
        assert seen != pytest.approx(expected["logprobs"], abs=far)


@pytest.mark.parametrize("family", ["gemma", "smolvlm", "qwen25vl", "qwen3vl", *([] if ON_GPU else ["qwen35"])])
def test_eight_who_ask_about_one_picture_have_it_encoded_and_computed_once(family, request):
    server = request.getfixturevalue(family)
    before = counted(server)
    shown, behind = image_part(picture("burst")), text(words(*range(20, 60)))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: chat(server, text(words(30)), shown, behind, text(words(40 + i, 41, 42))), range(8)))
    prompt = answers[0]["usage"]["prompt_tokens"]
    done = since(server, before)
    assert done["image_encodes"] == encodes(server)
    assert done["image_cache_hits"] == 7 * encodes(server)
    # Who comes while the first one's answer goes on finds its full blocks.
    first = min(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)
    assert prompt - first + 7 * 3 <= done["computed_tokens"] <= prompt - first + 7 * (3 + BLOCK)
    alone = [chat(server, text(words(30)), shown, behind, text(words(40 + i, 41, 42)), cache_prompt=False) for i in range(8)]
    assert [a["choices"][0]["message"] for a in answers] == [a["choices"][0]["message"] for a in alone]
    assert_nothing_held(server.idle_stats())


def test_a_picture_elsewhere_in_a_prompt_is_not_encoded_again(server):
    shown = image_part(picture("elsewhere"))
    chat(server, shown, text(words(30)))
    before = counted(server)
    chat(server, text(words(31, 32, 33)), shown, text(words(34)), shown)
    done = since(server, before)
    assert (done["images_decoded"], done["image_encodes"], done["image_cache_hits"]) == (0, 0, 2 * encodes(server))


def test_with_one_other_pixel_nothing_behind_it_is_found(server):
    pixels = noise("pixel")
    first = image_part(png(128, 64, bytes(pixels)))
    pixels[64 * 32 * 3] ^= 1
    other = image_part(png(128, 64, bytes(pixels)))
    same = image_part(picture("same"))
    chat(server, text(words(50, 51)), same, first, text(words(52)))
    answer = chat(server, text(words(50, 51)), same, other, text(words(52)), cache_report=True)
    report = answer["cache_report"]
    assert report["ended"] == "differs"
    assert report["why"] == "The images differ: the second of the first message."
    assert report["matched_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    # The rows of the second one, and what is behind them.
    assert 0 < answer["usage"]["prompt_tokens"] - report["matched_tokens"] <= answer["usage"]["prompt_tokens"] // 2 + 4
    assert report["text"]["asked"].startswith("[image 128x64, 16 tokens]")
    assert report["text"]["found"].startswith("[image 128x64, 16 tokens]")


def test_salts_never_meet(server):
    shown = image_part(picture("salts"))
    chat(server, shown, text(words(30)), cache_salt="a")
    before = counted(server)
    answer = chat(server, shown, text(words(30)), cache_salt="b")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert since(server, before)["image_encodes"] == encodes(server)  # how long it takes tells nothing
    again = chat(server, shown, text(words(30)), cache_salt="b")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1


def test_all_apis_show_the_same_prompt(server):
    file = picture("apis")
    url, plain = data_url(file), base64.b64encode(file).decode()
    said = chat(server, text(words(30)), image_part(file), text(words(31)))
    n = said["usage"]["prompt_tokens"]
    content = [{"type": "input_text", "text": words(30)}, {"type": "input_image", "image_url": url}, {"type": "input_text", "text": words(31)}]
    response = server.post("/v1/responses", {"input": [{"role": "user", "content": content}], "max_output_tokens": 4, "temperature": 0})
    assert response["usage"]["input_tokens"] == n
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == n - 1
    blocks = [text(words(30)), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": plain}}, text(words(31))]
    message = server.post("/v1/messages", {"messages": [{"role": "user", "content": blocks}], "max_tokens": 4, "temperature": 0})
    assert message["usage"]["cache_read_input_tokens"] == n - 1
    assert server.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": blocks}]})["input_tokens"] == n
    prompt = {"prompt_string": words(30) + "<__media__>" + words(31), "multimodal_data": [plain]}
    completion = server.post("/completion", {"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": True})
    assert (completion["tokens_evaluated"], completion["tokens_cached"]) == (n, n - 1)
    assert completion["content"] == said["choices"][0]["message"]["content"]
    shown = server.post("/apply-template", {"messages": [{"role": "user", "content": [text(words(30)), image_part(file)]}]})
    assert shown["prompt"].endswith(words(30) + "<__media__>")


CALLING = """{% if tools %}{% for tool in tools %}{% set x = tool.function.name %}{% endfor %}{% endif %}{% for m in messages -%}
{% if m.tool_calls %}{% for call in m.tool_calls %}{{ call.function.name[:0] }}{{ (call.function.arguments | tojson)[:0] }}{% endfor -%}
{% else %}{{ m.content }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("name", ["gemma3", "smolvlm"])
def test_a_tools_result_may_be_a_screenshot(name, tmp_path):
    with Coppice(*OPTIONS, model=write_model(name, tmp_path, CALLING, wide=ON_GPU)) as server:
        look_at_a_screenshot(server)


def look_at_a_screenshot(server):
    plain = base64.b64encode(picture("screenshot")).decode()
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": plain}}

    def turns(*blocks):
        return [{"role": "user", "content": words(30)}, {"role": "assistant", "content": [use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": list(blocks)}]}]

    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    counts = [server.post("/v1/messages/count_tokens", {"messages": turns(*blocks), "tools": tools})["input_tokens"]
              for blocks in ([shot], [])]
    assert counts[0] - counts[1] >= 16


def test_a_stored_response_keeps_its_picture(server):
    content = [{"type": "input_text", "text": words(30)}, {"type": "input_image", "image_url": data_url(picture("stored"))}]
    first = server.post("/v1/responses", {"input": [{"role": "user", "content": content}], "max_output_tokens": 4, "temperature": 0})
    second = server.post("/v1/responses", {"input": words(31), "previous_response_id": first["id"], "max_output_tokens": 4})
    n = first["usage"]["input_tokens"]
    assert second["usage"]["input_tokens"] >= n + 1
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= n - 1


def test_a_urls_scheme_and_type_may_be_in_capitals(gemma):
    plain = base64.b64encode(picture("capitals")).decode()
    for head in ("data:image/png;base64,", "DATA:Image/PNG;Base64,", "data:;base64,"):
        chat(gemma, {"type": "image_url", "image_url": {"url": head + plain}}, text(words(30)))


def test_a_text_that_names_a_picture_shows_none(server):
    marker = "<__media__>"
    answer = server.post("/tokenize", {"content": words(30)})
    assert answer["count"] == 1
    status, error = refused_chat(server, text(marker), image_part(picture(2)))
    assert status == 400 and error["code"] == "unknown_character"  # it is text, for which this vocabulary has no tokens


def bomb():
    """Its head says 20,000 x 20,000."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    return picture(3)[:12] + head + struct.pack(">I", zlib.crc32(head)) + picture(3)[33:]


@pytest.mark.parametrize("part, message", [
    (image_part(b"no image"), "is no JPEG, PNG, WebP, GIF or BMP file"),
    (image_part(picture(4)[:2000]), "ends"),
    (image_part(bomb()), "pixels"),
    ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "--allow-media-from"),
    ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "an http or https URL"),
    ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "base64"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}, "base64"),
    ({"type": "image_url", "image_url": {"url": "data:audio/wav;base64,AAAA"}}, "audio is not supported"),
    ({"type": "image_url", "image_url": {"url": data_url(picture(4)), "detail": "most"}}, "detail"),
    ({"type": "image_url"}, "is required"),
    ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio is not supported"),
    ({"type": "video_url", "video_url": {"url": "data:"}}, "video is not supported"),
])
def test_what_is_no_picture_is_refused(server, part, message):
    status, error = refused_chat(server, text(words(30)), part)
    assert status == 400
    assert message in error["message"], error
    assert "messages[0].content[1]" in error["param"]


def test_limits(folders):
    with Coppice(*OPTIONS, "--max-images", "2", "--max-image-pixels", "8192", "--image-cache", "0", model=folders("gemma3") / "model.gguf") as server:
        assert refused_chat(server, *[image_part(picture(i)) for i in range(3)])[1]["message"].endswith("at most 2 images in a request")
        assert "pixels" in refused_chat(server, image_part(picture(1, 128, 65)))[1]["message"]
        chat(server, image_part(picture(1)), text(words(30)))
        before = counted(server)
        chat(server, text(words(31)), image_part(picture(1)), text(words(30)))
        assert since(server, before)["image_encodes"] == 1  # nothing is kept


def test_a_prompt_that_is_too_long_says_what_its_images_take(folders):
    with Coppice("--kv-bytes", "16MiB", "--ctx", "40", model=folders("gemma3") / "model.gguf") as server:
        status, error = refused_chat(server, *[image_part(picture(i)) for i in range(3)])
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "48 of them of its images" in error["message"]
        prompt = {"prompt_string": "<__media__>" * 3, "multimodal_data": [base64.b64encode(picture(i)).decode() for i in range(3)]}
        for path, field in (("/completion", "prompt"), ("/v1/embeddings", "input")):
            status, error = refused(server, path, {field: prompt, "n_predict": 4} if field == "prompt" else {field: prompt})
            assert status == 400 and "48 of them of its images" in error["message"], path


def test_large_images_that_pause_hold_nobody_up(folders):
    """They are decoded in turns with small ones, which come meanwhile: once those waited for each other for ever."""
    def large(i):
        side = 5000
        lines = (b"\4" + bytes([i]) + bytes(side * 3 - 1)) * side  # a filter that takes time
        return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
                         chunk(b"IDAT", zlib.compress(lines, 1)), chunk(b"IEND", b"")))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    with Coppice(*OPTIONS, "--max-body", "4MiB", model=folders("gemma3") / "model.gguf") as server:
        for round in range(3):
            larges = [image_part(large(2 * round + i)) for i in range(2)]
            smalls = [image_part(picture(f"small {round} {i}")) for i in range(8)]

            def ask(part, route="/v1/chat/completions"):
                body = {"messages": [{"role": "user", "content": [part, text(words(30))]}], "max_tokens": 1}
                request = urllib.request.Request(server.url + route, json.dumps(body).encode())
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                    return reply.status

            with ThreadPoolExecutor(16) as pool:
                asked = [pool.submit(ask, part) for part in larges]
                time.sleep(0.05 * (round + 1))
                asked += [pool.submit(ask, part, route) for part, route in zip(smalls, ("/v1/chat/completions", "/tokenize") * 4)]
                assert [each.result() for each in asked] == [200] * 10


def test_the_request_log_says_how_long_images_took(folders, tmp_path):
    lines = tmp_path / "requests"
    with Coppice(*OPTIONS, "--request-log", str(lines), model=folders("gemma3") / "model.gguf") as server:
        for parts in ([text(words(30))], [image_part(picture("timed")), text(words(30))]):
            chat(server, *parts)
        plain, shown = server.request_log(lines, 2)
        assert plain["image_seconds"] is None
        assert 0 < shown["image_seconds"] <= shown["first_token_seconds"]


def test_low_detail_looks_at_a_smaller_picture(gemma):
    before = counted(gemma)
    big = picture("big", 1100, 600)
    chat(gemma, image_part(big), text(words(30)))
    chat(gemma, image_part(big, detail="low"), text(words(30)))
    assert since(gemma, before)["image_encodes"] == 2


def test_cache_reports_name_images_of_a_prompt(gemma):
    first, second, other = (base64.b64encode(picture(f"named {i}")).decode() for i in range(3))
    for last in (second, other):
        prompt = {"prompt_string": words(30) + "<__media__>" + words(31) + "<__media__>" + words(32), "multimodal_data": [first, last]}
        report = gemma.post("/completion", {"prompt": prompt, "n_predict": 1, "cache_report": True})["cache_report"]
    assert report["why"] == "The images differ: the second of the prompt."


def test_a_template_that_drops_an_image_is_refused_wherever_it_is_counted(tmp_path):
    model = write_model("gemma3", tmp_path, template="{{ messages[-1]['content'] }}", wide=ON_GPU)
    body = {"messages": [{"role": "user", "content": [image_part(picture(1))]}, {"role": "user", "content": words(30)}]}
    with Coppice(*OPTIONS, model=model) as server:
        for path in ("/v1/chat/completions", "/tokenize", "/v1/chat/completions/render"):
            status, error = refused(server, path, body)
            assert status == 400 and "leaves this image out" in error["message"], path


@pytest.mark.skipif(ON_GPU, reason="Gemma 4 is not run there")
@pytest.mark.parametrize("bounds, message", [
    (["--image-min-tokens", "100", "--image-max-tokens", "10"], "--image-min-tokens must be at most --image-max-tokens"),
    (["--image-max-tokens", "2"], "--image-max-tokens"),
])
def test_bounds_of_an_images_tokens_that_do_not_fit_end_the_start(tmp_path, bounds, message):
    model = write_model("gemma4", tmp_path)  # of no GPU's families
    command = [binary(), "serve", "--model", model, *bounds, "--port", "0", "--kv-bytes", "16MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert message in done.stderr.strip().splitlines()[-1]


def test_what_the_server_says_of_itself(gemma, folders):
    assert gemma.get("/props")[1]["modalities"] == {"vision": True, "audio": False}
    assert gemma.get("/v1/models")[1]["data"][0]["architecture"]["input_modalities"] == ["text", "image"]
    with Coppice(*OPTIONS, "--no-mmproj", model=folders("gemma3") / "model.gguf") as server:
        assert server.get("/props")[1]["modalities"] == {"vision": False, "audio": False}
        status, error = refused_chat(server, image_part(picture(1)))
        assert status == 400 and "--mmproj" in error["message"]


def test_a_projector_that_does_not_fit(folders, tmp_path):
    model = folders("gemma3") / "model.gguf"
    other = tmp_path / "mmproj-other.gguf"
    data = bytearray((folders("smolvlm") / "mmproj.gguf").read_bytes())
    key = b"clip.vision.projection_dim"
    at = data.index(key) + len(key) + 4
    data[at:at + 4] = struct.pack("<I", 4096)
    other.write_bytes(data)
    for file in (other, model):
        done = subprocess.run([binary(), "serve", "--model", model, "--mmproj", file, "--port", "0", "--kv-bytes", "16MiB"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "projector" in done.stderr.strip().splitlines()[-1]
    # One that only lies there is left there.
    folder = tmp_path / "beside"
    folder.mkdir()
    shutil.copy(model, folder / "model.gguf")
    shutil.copy(other, folder / "mmproj-f16.gguf")
    with Coppice(*OPTIONS, model=folder / "model.gguf") as server:
        assert "no images: " in server.log.read_text()
        assert not server.get("/props")[1]["modalities"]["vision"]
