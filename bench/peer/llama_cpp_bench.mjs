// Measures llama.cpp's speed on one model with one of its CPU builds, for peer_bench.py.
//
// Usage: node llama_cpp_bench.mjs JOB.json > RESULT.json
//   job     {"modules": folder with node-llama-cpp, "model": path, "threads": n,
//            "flash_attention": bool, "kv_type": "F16", "prompt": [id, ...], "repeats": n,
//            "depths": [n, ...], "prefill_depths": [n, ...], "decode_tokens": n,
//            "history": [id, ...], "state": path or null, "sequences": [n, ...],
//            "sequence_history": n, "clock": "wall" or "cpu", "rounds": n, "in_turn": bool}
//   result  {"build": name, "prefill_ms": {depth: [one per repeat]},
//            "decode_ms": {depth: [one per token]}, "history_ms": {depth: n},
//            "sequences_ms": {number of sequences: [one per pass of a token of each]},
//            "greedy": [the choice after each of the prompt's last tokens], "margins": [...]}
//
// Times are those of llama_decode and its synchronisation only, like llama-bench's. The first pass
// of decode at each depth is a warm-up and not in the lists. The choices are computed before
// prefill. The history before a depth is evaluated once, in batches of 512, and saved to
// `state`.DEPTH, from which later runs load it. Several sequences have a context of their own, and
// each evaluates its history by itself. Rounds and turns are those of model_bench.

import {once} from "node:events";
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const kBatch = 512;
const kChecked = 16;  // the prompt's last tokens, whose choices are compared

const job = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const entry = path.resolve(job.modules, "node-llama-cpp/dist/index.js");
const {getLlama} = await import(pathToFileURL(entry).href);

let timedMs = 0, cpuMs = 0;

// Returns the milliseconds that `work` takes, or those of processor time.
async function timed(work) {
    const cpu = process.cpuUsage();
    const start = process.hrtime.bigint();
    await work();
    const ms = Number(process.hrtime.bigint() - start) / 1e6;
    const used = process.cpuUsage(cpu);
    timedMs += ms;
    const processorMs = (used.user + used.system) / 1e3;
    cpuMs += processorMs;
    return job.clock === "cpu" ? processorMs : ms;
}

// Prints the line "turn" and waits for a line, if this program measures in turn with another one.
async function takeTurn() {
    if (!job.in_turn)
        return;
    fs.writeSync(1, "turn\n");
    process.stdin.resume();
    await once(process.stdin, "data");
    process.stdin.pause();
}

// Sequence 0, through the binding's low-level calls, which pass batches to llama_decode unchanged.
class Sequence {
    constructor(context) {
        this.owner = context.getSequence();  // the sequence is emptied if this is collected
        this.raw = context._ctx;
        this.length = 0;
    }

    // Evaluates tokens after those held, with the last one's logits. Returns milliseconds.
    async append(tokens) {
        this.raw.initBatch(tokens.length);
        this.raw.addToBatch(0, this.length, Uint32Array.from(tokens),
            Uint32Array.of(tokens.length - 1));
        const ms = await timed(() => this.raw.decodeBatch());
        this.length += tokens.length;
        return ms;
    }

    truncate(length) {
        if (!this.raw.removeTokenCellsFromSequence(0, length, -1))
            throw new Error(`llama.cpp could not truncate to ${length} tokens`);
        this.length = length;
    }

    check(where) {
        const held = this.raw.getSequenceKvCacheMaxPosition(0) + 1;
        if (held !== this.length)
            throw new Error(`${where}: llama.cpp holds ${held} tokens instead of ${this.length}`);
    }
}

// Computes greedy choices and margins after the prompt's last tokens, through the public interface.
async function checkChoices(sequence, tokens) {
    const top2 = {generateNext: {
        logits: {filter: {includeTop: 2}}, options: {temperature: 1, topK: 0, topP: 1, minP: 0}
    }};
    const checked = Math.min(kChecked, tokens.length);
    const input = tokens.map((token, i) => i < tokens.length - checked ? token : [token, top2]);
    const greedy = [], margins = [];
    for (const output of (await sequence.controlledEvaluate(input)).slice(-checked)) {
        const [[first, high], [, low]] = [...output.next.logits].sort((a, b) => b[1] - a[1]);
        greedy.push(first);
        margins.push(high - low);
    }
    await sequence.clearHistory();
    return {greedy, margins};
}

async function measurePrefill(sequence, depth) {
    const times = [];
    for (let i = 0; i < job.repeats; i++) {
        times.push(await sequence.append(job.prompt));
        sequence.truncate(depth);
    }
    return times;
}

async function reachDepth(sequence, depth) {
    const file = job.state && `${job.state}.${depth}`;
    if (file && fs.existsSync(file)) {
        await sequence.raw.loadSequenceStateFromFile(file, 0, depth);
        sequence.length = depth;
        sequence.check(file);
        return 0;
    }
    let spent = 0;
    while (sequence.length < depth) {
        const end = Math.min(depth, sequence.length + kBatch);
        spent += await sequence.append(job.history.slice(sequence.length, end));
    }
    sequence.check(`depth ${depth}`);
    if (file && depth > 0)
        await sequence.raw.saveSequenceStateToFile(file, 0,
            Uint32Array.from(job.history.slice(0, depth)));
    return spent;
}

async function measureDecode(sequence, depth) {
    const times = [];
    for (let i = 0; i <= job.decode_tokens; i++)
        times.push(await sequence.append([job.history[depth + i]]));
    sequence.truncate(depth);
    return times.slice(1);
}

// Times passes of one token of each of `count` sequences, which are in one context.
async function measureSequences(model, count) {
    const passes = job.rounds * (job.decode_tokens + 1);
    const context = await model.createContext({
        ...contextOptions,
        contextSize: job.sequence_history + passes,
        sequences: count
    });
    const raw = context._ctx;
    const owners = Array.from({length: count}, () => context.getSequence());
    const ids = owners.map((owner) => owner._sequenceId);
    for (const id of ids) {
        // Each sequence has other tokens.
        const first = id % (job.history.length - job.sequence_history);
        const tokens = job.history.slice(first, first + job.sequence_history);
        for (let at = 0; at < tokens.length; at += kBatch) {
            const part = tokens.slice(at, at + kBatch);
            raw.initBatch(part.length);
            raw.addToBatch(id, at, Uint32Array.from(part), Uint32Array.of(part.length - 1));
            await raw.decodeBatch();
        }
    }
    const times = [];
    for (let i = 0; i < passes; i++) {
        const warmUp = i % (job.decode_tokens + 1) === 0;
        if (warmUp)
            await takeTurn();
        raw.initBatch(count);
        for (const id of ids)
            raw.addToBatch(id, job.sequence_history + i,
                Uint32Array.of(job.history[(id + i) % job.history.length]), Uint32Array.of(0));
        const ms = await timed(() => raw.decodeBatch());
        if (!warmUp)
            times.push(ms);
    }
    for (const id of ids) {
        const held = raw.getSequenceKvCacheMaxPosition(id) + 1;
        if (held !== job.sequence_history + passes)
            throw new Error(`sequence ${id} of ${count}: llama.cpp holds ${held} tokens`);
    }
    await context.dispose();
    return times;
}

const llama = await getLlama({
    gpu: false, build: "never", maxThreads: job.threads, logLevel: "error"
});
const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0});
const contextOptions = {
    batchSize: kBatch,
    threads: job.threads,
    flashAttention: job.flash_attention,
    experimentalKvCacheKeyType: job.kv_type,
    experimentalKvCacheValueType: job.kv_type
};
const context = await model.createContext({
    ...contextOptions,
    contextSize: Math.max(0, ...job.prefill_depths, ...job.depths) + job.prompt.length +
        job.decode_tokens + 1
});
const sequence = new Sequence(context);
if (sequence.raw.getThreads() !== job.threads)
    throw new Error(
        `llama.cpp uses ${sequence.raw.getThreads()} threads instead of ${job.threads}`);
const maps = fs.readFileSync("/proc/self/maps", "utf8");
const result = {
    build: [...new Set(maps.match(/(?<=libggml-cpu-)\w+/g))].join("+"),
    ...(await checkChoices(sequence.owner, job.prompt)),
    prefill_ms: {},
    decode_ms: {},
    history_ms: {},
    sequences_ms: {},
    rounds: job.rounds
};
const depths = [...new Set([...job.prefill_depths, ...job.depths])].sort((a, b) => a - b);
for (const depth of depths) {
    result.history_ms[depth] = await reachDepth(sequence, depth);
    for (let round = 0; round < job.rounds; round++) {
        if (job.depths.includes(depth)) {
            await takeTurn();
            (result.decode_ms[depth] ??= []).push(...await measureDecode(sequence, depth));
        }
        if (job.prefill_depths.includes(depth) && (depth === 0 || round === 0)) {
            await takeTurn();
            (result.prefill_ms[depth] ??= []).push(...await measurePrefill(sequence, depth));
        }
    }
}
await context.dispose();
for (const count of job.sequences)
    result.sequences_ms[count] = await measureSequences(model, count);
result.cpu_share = cpuMs / (timedMs * job.threads);
await model.dispose();
await llama.dispose();
process.stdout.write(JSON.stringify(result) + "\n");
