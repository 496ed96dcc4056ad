#!/usr/bin/env python3
"""Stands in for the llama-server binary in llama.cpp's own server tests: turns its options into coppice's and becomes coppice.

What coppice doesn't have ends it with status 2 and a line that begins with "peer:", so that the test fails at once and the
report can say why.
"""

import os
import sys
import tempfile

# What is the same here, or what coppice does anyway.
SAME = {"--port", "--host", "--temp", "--seed", "--threads", "--batch-size", "--alias", "--api-key", "--cors-origins",
        "--chat-template-file"}
SAME_FLAGS = {"--verbose", "--no-ui", "--slots", "--no-slots"}
NEEDLESS = {"--offline", "--cont-batching", "--metrics", "--jinja", "--no-jinja", "--swa-full",
            "--embedding", "--no-mmproj", "--no-models-autoload", "--backend_sampling", "--no-cache-idle-slots"}
NEEDLESS_WITH_VALUE = {"--ubatch-size", "--n-gpu-layers", "-ctk", "-ctv", "-fa", "--cache-ram", "--reasoning-format",
                       "--tags", "--models-max"}
UNKNOWN = {"--reranking": "reranking", "--lora": "LoRA", "--context-shift": "context shift",
           "--slot-save-path": "slot files", "--model-draft": "draft models", "--spec-type": "draft models",
           "--models-dir": "router", "--models-preset": "router", "--sleep-idle-seconds": "sleeping",
           "--ui-mcp-proxy": "MCP", "--tools": "built-in tools", "--tools-runtime": "built-in tools",
           "--mcp-servers-config": "MCP", "--mcp-servers-json": "MCP", "--mmproj-url": "images", "--media-path": "images",
           "--grp-attn-n": "self-extend"}
REPOS = {"stories260K-infill": "infill", "tinygemma3": "images", "jina-reranker": "reranking",
         "stories15M_MOE": "LoRA"}


TURNS = "{% for m in messages %}BEGIN{{ m.role }}MIDDLE{{ m.content | trim }}END{% endfor %}{% if add_generation_prompt %}OPEN{% endif %}"
# llama-server's built-in templates that its tests name, as Jinja.
TEMPLATES = {
    "chatml": TURNS.replace("BEGIN", "<|im_start|>").replace("MIDDLE", "\n").replace("END", "<|im_end|>\n")
    .replace("OPEN", "<|im_start|>assistant\n"),
    "llama3": TURNS.replace("BEGIN", "<|start_header_id|>").replace("MIDDLE", "<|end_header_id|>\n\n")
    .replace("END", "<|eot_id|>").replace("OPEN", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "command-r": TURNS.replace("BEGIN", "<|START_OF_TURN_TOKEN|><|").replace("MIDDLE", "_TOKEN|>")
    .replace("{{ m.role }}", "{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] }}")
    .replace("END", "<|END_OF_TURN_TOKEN|>").replace("OPEN", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"),
}


def refuse(what: str):
    print(f"peer: not here: {what}", flush=True)
    sys.exit(2)


def template_file(value: str) -> str:
    """llama-server takes a template's name or its text; coppice a file."""
    if value in TEMPLATES:
        value = TEMPLATES[value]
    elif " " not in value and "{" not in value:
        refuse(f"the built-in template {value}")
    file = tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False)
    file.write(value)
    file.close()
    return file.name


def translate(arguments: list[str]) -> list[str]:
    out, context, parallel, unified, model = [], 0, 1, False, False
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if name in UNKNOWN:
            refuse(UNKNOWN[name])
        elif name in NEEDLESS:
            pass
        elif name in SAME_FLAGS:
            out.append(name)
        elif name == "--kv-unified":
            unified = True
        elif not rest:
            refuse(name)
        elif name in SAME:
            out += [name, rest.pop(0)]
        elif name in NEEDLESS_WITH_VALUE:
            rest.pop(0)
        elif name in ("--hf-repo", "--hf-file", "--model", "--model-url"):
            value = rest.pop(0)
            model = True
            for repo, what in REPOS.items():
                if repo in value:
                    refuse(what)
        elif name == "--chat-template":
            out += ["--chat-template", template_file(rest.pop(0))]
        elif name == "--reasoning":
            out += [name, rest.pop(0)]
        elif name == "--pooling":
            value = rest.pop(0)
            if value not in ("mean", "last"):
                refuse(f"pooling {value}")
            out += ["--pooling", value]
        elif name == "--ctx-size":
            context = int(rest.pop(0))
        elif name == "--parallel":
            parallel = int(rest.pop(0))
        elif name == "--n-predict":
            value = rest.pop(0)
            out += ["--n-predict", value] if int(value) > 0 else []
        else:
            refuse(name)
    cors = "--cors-origins" in out
    if not model and not cors:  # who asks for its origins only asks nothing of a model
        refuse("router")
    if context:  # llama-server divides it among its slots
        out += ["--ctx", str(context if unified else context // parallel)]
    if not cors:  # llama-server's default, as the next
        out += ["--cors-origins", "*"]
    out += ["--prefill-assistant"]
    if "--threads" not in out:  # so that a test takes as long on a busy machine
        out += ["--threads", "1"]
    # Its tests name models that no server has, and llama-server doesn't look.
    return ["serve", "--model", os.environ["COPPICE_MODEL"], "--max-batch", str(parallel), "--kv-bytes", "256MiB",
            "--drain-seconds", "1", "--alias", "*", *out]


if __name__ == "__main__":
    command = [os.environ["COPPICE_BINARY"], *translate(sys.argv[1:])]
    os.execv(command[0], command)
