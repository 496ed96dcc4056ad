"""A proxy between an agent and coppice. Every request goes to coppice, whose answer is checked; then the agent gets a turn of a script
in place of it, as a small model would not do the task: some calls of its shell, then a word. coppice's usage goes on to the agent."""

import http.server
import json
import threading
import urllib.error
import urllib.request

ANSWER_TOKENS = 8  # that coppice writes for each turn


class Turn:
    """What coppice said to one request of the conversation."""

    def __init__(self, prompt_tokens, cached_tokens):
        self.prompt_tokens, self.cached_tokens = prompt_tokens, cached_tokens


def events_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def event(data):
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"


class Messages:
    """Anthropic's."""

    path = "/v1/messages"

    @staticmethod
    def shell(body):
        return next((tool["name"] for tool in body.get("tools", []) if tool["name"] == "Bash"), None)

    @staticmethod
    def shorten(body):
        body["max_tokens"] = ANSWER_TOKENS

    @staticmethod
    def usage(events):
        assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop", events
        usage = next(e["usage"] for e in events if e["type"] == "message_delta")
        cached = usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
        assert prompt == sum(events[0]["message"]["usage"][k] for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        return Turn(prompt, cached), usage

    @staticmethod
    def results(body):
        return json.dumps(body["messages"])

    @staticmethod
    def reply(number, shell, command, usage):
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": shell, "input": {}} if command else {"type": "text", "text": ""}
        delta = ({"type": "input_json_delta", "partial_json": json.dumps({"command": command, "description": "a step"})} if command
                 else {"type": "text_delta", "text": "all done"})
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "smol", "content": [], "stop_reason": None,
                   "stop_sequence": None, "usage": usage}
        return "".join(map(event, [
            {"type": "message_start", "message": message}, {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta}, {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use" if command else "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"}]))


class Responses:
    """OpenAI's."""

    path = "/v1/responses"
    ARGUMENTS = {"shell": lambda command: {"command": ["bash", "-c", command]}, "shell_command": lambda command: {"command": command},
                 "exec_command": lambda command: {"cmd": command}}

    @staticmethod
    def shell(body):
        return next((tool["name"] for tool in body.get("tools", []) if tool.get("name") in Responses.ARGUMENTS), None)

    @staticmethod
    def shorten(body):
        body["max_output_tokens"] = ANSWER_TOKENS

    @staticmethod
    def usage(events):
        assert events[0]["type"] == "response.created", events
        assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
        usage = events[-1]["response"]["usage"]
        return Turn(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]), usage

    @staticmethod
    def results(body):
        return json.dumps(body["input"])

    @staticmethod
    def reply(number, shell, command, usage):
        if command:
            arguments = json.dumps(Responses.ARGUMENTS[shell](command))
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": shell, "arguments": arguments, "status": "completed"}
        else:
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "all done", "annotations": []}]}
        response = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "smol", "output": [item], "usage": usage}
        return "".join(map(event, [
            {"type": "response.created", "response": response | {"status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item}, {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response}]))


class Proxy:
    """Serves one agent's run of `commands`. `turns`: of its conversation so far; `faults`: what was not as it should be."""

    def __init__(self, server_url, commands):
        self.server_url, self.commands = server_url, commands
        self.turns, self.faults, self.last_results = [], [], ""
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                proxy.handle(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_HEAD(self):
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()

    def handle(self, request, body):
        form = Messages if request.path.split("?")[0] == Messages.path else Responses if request.path == Responses.path else None
        shell = form.shell(body) if form else None
        if shell:
            form.shorten(body)
        status, kind, text = self.forward(request.path, body)
        if status != 200:
            self.faults.append(f"{request.path}: {status} {text}")
        elif shell:
            try:
                turn, usage = form.usage(events_of(text))
            except (AssertionError, KeyError, StopIteration, IndexError) as e:
                self.faults.append(f"{request.path}: {e!r}")
                turn, usage = Turn(0, 0), {}
            command = self.commands[len(self.turns)] if len(self.turns) < len(self.commands) else None
            self.turns.append(turn)
            self.last_results = form.results(body)
            text = form.reply(len(self.turns), shell, command, usage)
        data = text.encode()
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def forward(self, path, body):
        headers = {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.server_url + path, json.dumps(body).encode(), headers), timeout=300) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers["Content-Type"], e.read().decode()
