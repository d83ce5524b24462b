"""The benchmarks that `./dev bench` runs: the options of each program, and its cases in the format
of bench/README.md. Every program checks its results before it times them, and fails if they are
wrong."""

import json
import pathlib
import subprocess
import sys

from machine_facts import ROOT

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "peer"), str(ROOT / "tests/support"), str(ROOT / "tests/oracle")]

MODEL_SEED, PROMPT = 1, 512
DEPTHS = [0, 1024, 4096, 16384, 32768, 65536, 131072]
EVALUATED = 2048  # evaluated tokens of a deep history; the others are copies of them
MAIN_KV_TYPES = ["f16", "q8_0", "q4_0"]
PREFILL_DEPTHS = [0, 4096, 16384]


class Run:
    """The options of a run: folders, threads, types, and whether it is a quick one."""

    def __init__(self, args, log):
        self.build, self.work, self.models = args.build, args.out / "work", args.models
        self.threads, self.quick, self.extra, self.log = args.threads, args.quick, args.rest, log
        self.with_peer, self.kv_types = args.peer, args.kv_types
        self.machine = {}  # the result of machine()
        self.work.mkdir(parents=True, exist_ok=True)

    def program(self, name, *options):
        """Runs a benchmark. Its output goes to the terminal."""
        command = list(map(str, [self.build / "bench" / name, *options, *self.extra]))
        subprocess.run(command, check=True, stdout=sys.stderr)

    def output(self, program, *options):
        """Runs a program and returns its standard output."""
        command = list(map(str, [self.build / program, *options]))
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def json_file(self, name, *options):
        path = self.work / f"{name}.json"
        path.unlink(missing_ok=True)  # an old file must not count as this run's result
        self.program(name, *options, f"--json={path}")
        return json.loads(path.read_text())


def machine(run):
    """Measures the machine's limits."""
    return json.loads(run.output("bench/model_bench", "--threads", run.threads))["machine"]


# ---- attention, linear layers, metadata, tokenizers ----------------------------------------


def attention_filter(run):
    """Returns a pattern for the names of attention_bench's cases."""
    if run.quick:
        return one_sequence(run, decode=4096, prefill=512)
    return f" ({'|'.join(run.kv_types)})(-|$)" if run.kv_types else "."


def one_sequence(run, decode, prefill):
    """Returns a pattern for the cases of one sequence with these histories, K and V of the same
    type."""
    shapes = f"(decode history {decode} queries 1|prefill history {prefill} queries 512)"
    return f"^{shapes} batch 1 head 128 ({'|'.join(run.kv_types or MAIN_KV_TYPES)})$"


def attention(run):
    cases = run.json_file("attention_bench", f"--threads={run.threads}",
                          f"--rounds={3 if run.quick else 15}",
                          f"--filter={attention_filter(run)}")["cases"]
    if run.with_peer:
        import attention_peer
        if attention_peer.available():
            seconds = 0.1 if run.quick else 0.3
            results = attention_peer.measure(cases, run.threads, seconds, run.log)
            attention_peer.add_peer(cases, results)
        else:
            run.log("attention: ggml is not installed; ./dev setup oracle installs it")
    return cases


def targets(run):
    """Measures all instruction sets of the machine. The portable one is slow and gets fewer
    rounds."""
    cases = []
    for target in run.machine["targets"]:
        short = run.quick or target == "EMU128"
        shapes = {"decode": 4096, "prefill": 512} if run.quick else {"decode": 16384, "prefill": 4608}
        cases += run.json_file("attention_bench", f"--threads={run.threads}", f"--target={target}",
                               f"--rounds={3 if short else 15}",
                               f"--filter={one_sequence(run, **shapes)}")["cases"]
    return cases


def linear(run):
    quick = ["--filter=q8_0 2048x8192", "--rounds=3", "--decode-megabytes=128"]
    options = [f"--threads={run.threads}", *(quick if run.quick and not run.extra else [])]
    return run.json_file("linear_bench", *options)["cases"]


def store(run):
    return run.json_file("store_bench", *(["--rounds=2"] if run.quick else []))["cases"]


def prefix_store(run):
    model, _ = bench_model(run)
    quick = ["--tokens=512", "--generated=8", "--objects=500", "--rounds=2"]
    return run.json_file("prefix_store_bench", "--model", model, f"--threads={run.threads}",
                         *(quick if run.quick else []))["cases"]


def disk_store(run):
    quick = ["--bytes=33554432", "--objects=500", "--rounds=1"]
    return run.json_file("disk_store_bench", *(quick if run.quick else []))["cases"]


def recurrence(run):
    return run.json_file("recurrence_bench", *(["--rounds=2"] if run.quick else []))["cases"]


def snapshot(run):
    return run.json_file("snapshot_bench", *(["--rounds=2"] if run.quick else []))["cases"]


def metadata(run):
    return run.json_file("metadata_bench", "--rounds=100" if run.quick else "--rounds=2000")["cases"]


def prefix(run):
    quick = ["--rounds=50", "--nodes=100000"]
    return run.json_file("prefix_bench", *(quick if run.quick else []))["cases"]


def google_benchmark(run, program, quick):
    """Returns the cases of a program that Google Benchmark times."""
    path = run.work / f"{program}.json"
    path.unlink(missing_ok=True)  # an old file must not count as this run's result
    run.program(program, f"--benchmark_out={path}", "--benchmark_out_format=json",
                *(quick if run.quick and not run.extra else []))
    cases = []
    for found in json.loads(path.read_text())["benchmarks"]:
        if found.get("error_occurred"):
            raise RuntimeError(f"{found['name']}: {found['error_message']}")
        scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[found["time_unit"]]
        case = {"name": found["name"], "median_ms": found["cpu_time"] * scale}
        if "bytes_per_second" in found:
            case |= {"rate": found["bytes_per_second"] / 2**20, "unit": "MiB/s"}
        cases.append({**case, "rate_of": "median"})
    return cases


def tokenizer(run):
    quick = ["--benchmark_filter=^llama-bpe/.*(Words|Scripts)$", "--benchmark_min_time=0.05"]
    return google_benchmark(run, "tokenizer_bench", quick)


def token_mask(run):
    return google_benchmark(run, "token_mask_bench", ["--benchmark_min_time=0.05"])


# ---- a whole model -------------------------------------------------------------------------


def bench_model(run):
    """Writes a 1B-class model (quick: a tiny one) in Q8_0, once, and a file of tokens. Returns
    their paths."""
    import numpy
    import peer_bench
    from random_models import make_model
    shape = peer_bench.SHAPES["tiny" if run.quick else "1b"]
    folder = run.models / shape.name
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "q8_0.gguf"
    if not model.exists():
        run.log(f"writing {model}")
        make_model(run.build / "tools/make_model/kvcache-make-model", shape, "q8_0", MODEL_SEED,
                   model)
    tokens = run.work / "tokens"
    ids = numpy.random.default_rng(MODEL_SEED).integers(0, shape.vocab, 2 * EVALUATED)
    tokens.write_text(" ".join(map(str, ids)) + "\n")
    return model, tokens


def model_cases(run, kv, *options):
    import peer_report
    model, tokens = bench_model(run)
    run.log(f"{model.parent.name}, q8_0 weights, {kv} cache")
    with open(model, "rb", buffering=0) as file:  # reads the file into the page cache
        while file.read(1 << 24):
            pass
    result = json.loads(run.output(
        "bench/model_bench", "--model", model, "--tokens-file", tokens, "--threads", run.threads,
        "--k-type", kv, "--v-type", kv, "--evaluate", EVALUATED, "--prompt", PROMPT, *options,
        *run.extra))
    cases = peer_report.cases(model, "q8_0", kv, PROMPT, result)
    for case in cases:
        case["model"] = model.parent.name
    return cases


def decode(run):
    depths = [0, 1024, 4096] if run.quick else DEPTHS
    options = ["--depths", ",".join(map(str, depths)), "--prefill-depths", 0, "--repeats", 1,
               "--decode-tokens", 16]
    return [case for kv in run.kv_types or MAIN_KV_TYPES for case in model_cases(run, kv, *options)
            if case["kind"] == "decode"]


def prefill(run):
    depths = [0, 1024] if run.quick else PREFILL_DEPTHS
    options = ["--prefill-depths", ",".join(map(str, depths)), "--depths", 0, "--repeats", 3,
               "--decode-tokens", 1]
    return [case for kv in run.kv_types or MAIN_KV_TYPES for case in model_cases(run, kv, *options)
            if case["kind"] == "prefill"]


def server(run):
    return run.json_file("server_bench", "--rounds", 3 if run.quick else 9)["cases"]


def scheduler(run):
    model, _ = bench_model(run)
    quick = ["--users=6", "--turns=2", "--first=100"]
    return run.json_file("scheduler_bench", "--model", model, "--threads", run.threads,
                         *(quick if run.quick else []))["cases"]


def long_prompt(run):
    model, _ = bench_model(run)
    story = ["--model", ROOT / "models/story.gguf", "--ctx", 32768, "--prompt", 30000]
    large = ["--model", model, "--ctx", 8192, "--prompt", 8000]
    if run.quick:
        story[-1], large[-1] = 3000, 1000
    cases = []
    for name, options in {"story": story, model.parent.name: large}.items():
        for busy in (0, 2):
            result = run.json_file("long_prompt_bench", "--threads", run.threads, *options,
                                   "--busy", busy)
            for case in result["cases"]:
                case["name"] = f"{name}, {busy} busy loops, {case['name']}"
                cases.append(case)
    return cases


def embedding(run):
    tool = run.build / "tools/make_model/kvcache-make-model"
    small = ["--layers", 12, "--width", 384, "--heads", 12, "--ffn", 1536, "--vocab", 30522, "--context", 512]
    cases = []
    for weights in ("f16", "q8_0"):
        model = run.work / f"embedding-{weights}.gguf"
        command = [tool, "--arch", "bert", "--type", weights, "--pooling", 1, *small, model]
        subprocess.run([str(part) for part in command], check=True)
        result = run.json_file("embedding_bench", "--model", model, "--threads", run.threads, "--inputs",
                               100 if run.quick else 1000, "--rounds", 1 if run.quick else 5)
        cases += [{**case, "name": f"embed {weights}"} for case in result["cases"]]
    return cases


def speculation(run):
    model, _ = bench_model(run)
    quick = ["--answer=32", "--rounds=1", "--rates", 0, 80]
    return run.json_file("speculation_bench", "--model", model, "--threads", run.threads,
                         *(quick if run.quick else []))["cases"]


BENCHES = {
    "attention": (attention, "attention kernels, compared with ggml's"),
    "targets": (targets, "attention kernels for each instruction set of the machine"),
    "decode": (decode, "a 1B-class model's decode over contexts of 0 to 131,072 tokens"),
    "prefill": (prefill, "the same model's prefill of 512 tokens after 0 to 16,384 tokens"),
    "linear": (linear, "matrix products of each weight type"),
    "store": (store, "writing keys and values to the cache, for each type"),
    "prefix_store": (prefix_store, "stored prompts, compared with plain reads; needs redis-server"),
    "disk_store": (disk_store, "the disk store, over LMDB, compared with plain files"),
    "recurrence": (recurrence, "recurrent layers, drafts in them, and their acceptance"),
    "snapshot": (snapshot, "snapshots, lazy and as bytes, and transactions"),
    "metadata": (metadata, "the cost of a pass before any layer runs"),
    "prefix": (prefix, "the prefix cache's own cost, with a million nodes"),
    "speculation": (speculation, "drafts in the scheduler, against decoding without"),
    "server": (server, "requests through HTTP, compared with the same in the library"),
    "scheduler": (scheduler, "many users on a 1B-class model, and the scheduler's own cost"),
    "long_prompt": (long_prompt, "streams beside a long prompt, on an idle and a busy machine"),
    "embedding": (embedding, "the embedding of 1,000 short inputs"),
    "tokenizer": (tokenizer, "encoding text and decoding tokens"),
    "token_mask": (token_mask, "the tokens that a JSON schema allows"),
}
