"""Compares our tokenizers with llama.cpp's: ids, pieces, decoded text, and the tokens that end an
answer.

tokenizer_oracle writes vocabularies, as GGUF files without weights, and strings. llama_tokenize.mjs
tokenises the strings with llama.cpp, and tokenizer_oracle compares the results. The model files in
--models are compared too. KVCACHE_SLOW_TESTS=1 raises the number of strings to 100,000.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys

FEW_STRINGS = "2000"
SKIPPED = 77  # the exit status that ctest takes for "skipped"
HERE = pathlib.Path(__file__).resolve().parent
ORACLE = HERE.parent


def find_node():
    """Returns the Node installed beside the oracle, else the system's, else None."""
    return shutil.which(ORACLE / "node_modules/.bin/node") or shutil.which("node")


def raise_stack_limit():
    """Raises the stack limit: llama.cpp's regular expressions recurse once per character."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True, help="tokenizer_oracle")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--models", type=pathlib.Path, help="folder with *.gguf to compare too")
    parser.add_argument("--node", default=find_node())
    args = parser.parse_args()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(SKIPPED)
    if not (ORACLE / "node_modules/node-llama-cpp").exists():
        sys.exit("oracle: llama.cpp is not installed in tests/oracle; run ./dev setup oracle")
    args.work.mkdir(parents=True, exist_ok=True)
    models = sorted(args.models.glob("*.gguf")) if args.models else []
    # A file with a draft head only has no vocabulary.
    models = [model for model in models if b"tokenizer.ggml.tokens" in model.read_bytes()]
    count = "100000" if os.environ.get("KVCACHE_SLOW_TESTS") == "1" else FEW_STRINGS
    for command in ([args.program, "prepare", args.work, count, *models],
                    [args.node, HERE / "llama_tokenize.mjs", args.work],
                    [args.program, "compare", args.work, count]):
        status = subprocess.run(command, preexec_fn=raise_stack_limit).returncode
        if status != 0:
            sys.exit(f"oracle: `{' '.join(map(str, command))}` exited with status {status}")


if __name__ == "__main__":
    main()
