#!/usr/bin/env python3
"""Uses what is installed, as people do.

usage: installed.py all PREFIX EXAMPLES FOLDER   a text, a chat through the server, a benchmark, and both libraries
       installed.py serve -- COMMAND…            a chat through a server that COMMAND starts

PREFIX has an installation, EXAMPLES the projects `consumer` and `engine_consumer`. FOLDER is for what they
write. Nothing of the source tree is used.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

QUESTION = "Nina has a red ball. Otto has a green kite. Question: What does Nina have? Answer:"
SECONDS = 60


def check(condition, what):
    if not condition:
        sys.exit(f"installed.py: {what}")


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def chat(address):
    return post(address, "/v1/chat/completions",
                {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, "temperature": 0})


def read_address(server):
    for line in server.stderr:
        print(line, end="")
        found = re.search(r"http://\S+:(\d+)", line)
        if found:
            return f"http://127.0.0.1:{found[1]}"
    sys.exit(f"installed.py: the server ended with {server.wait()}")


def check_server(command, env=None):
    """Starts the server, asks twice, and ends the server."""
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    try:
        address = read_address(server)
        first, second = chat(address), chat(address)
        text = first["choices"][0]["message"]["content"]
        check(text.strip(), f"no answer: {first}")
        check(second["choices"][0]["message"]["content"] == text, f"another answer: {second}")
        usage = second["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        check(cached >= 0.9 * usage["prompt_tokens"], f"the prompt was not found: {usage}")
        server.send_signal(signal.SIGTERM)
        said = server.communicate(timeout=SECONDS)[1]
        check(server.returncode == 0, f"the server ended with {server.returncode}: {said}")
    finally:
        server.kill()
    print(f"server: {text.strip()!r}, {cached} of {usage['prompt_tokens']} tokens found again")


def run(*command, env):
    result = subprocess.run([str(word) for word in command], env=env, text=True, timeout=SECONDS * 10,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    check(result.returncode == 0, f"{command} ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout


def check_text(program, env):
    flags = ["-p", "Once upon a time", "-n", "48", "--temp", "0", "--json"]
    first, second = (json.loads(run(program, "run", *flags, env=env)) for _ in range(2))
    check(len(first["tokens"]) == 48, f"not 48 tokens: {first}")
    check(first["tokens"] == second["tokens"], f"another text: {second}")
    print(f"run: {first['text'].strip()[:60]!r}")


def check_benchmark(program, env):
    report = json.loads(run(program, "bench", "reuse", "--quick", "--json", env=env))
    check(report["reused_tokens"] >= 0.95 * report["unlimited_reused_tokens"], f"little was reused: {report}")
    print(f"bench: {report['reused_tokens']} of {report['prompt_tokens']} tokens reused")


def check_libraries(prefix, examples, folder, env):
    model = prefix / "share/kvcache/models/story.gguf"
    for name, arguments, expected in (("consumer", [], "kvcache on "),
                                      ("engine_consumer", [model], "story:")):
        build = folder / name
        run("cmake", "-S", examples / name, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", env=env)
        run("cmake", "--build", build, env=env)
        said = run(build / name, *arguments, env=env)
        check(expected in said, f"{name} said {said!r}")
        print(f"{name}: {said.splitlines()[0]}")


def check_all(prefix, examples, folder):
    home = folder / "home"
    home.mkdir(parents=True)
    env = {"HOME": str(home), "PATH": f"{prefix}/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    program = prefix / "bin/kvcache"
    check_text(program, env)
    check_server([program, "serve", "--port", "0"], env)
    check_benchmark(program, env)
    check_libraries(prefix, examples, folder, env)


def main():
    arguments = sys.argv[1:]
    if arguments[:2] == ["serve", "--"] and len(arguments) > 2:
        check_server(arguments[2:], dict(os.environ))
    elif arguments[:1] == ["all"] and len(arguments) == 4:
        check_all(*(Path(argument).resolve() for argument in arguments[1:]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
