// Computes llama.cpp's logits for given token ids, through node-llama-cpp, for compare.py.
//
// Usage: node llama_cpp.mjs < JOBS.json > RESULTS.json
//   job     {"model": path, "tokens": [id, ...], "greedy": n, "logits": out path,
//            "adapters": [{"filePath": path, "scale": s}, ...]}    adapters may be missing
//   result  {"tokens": [...], "vocab": v}    the job's tokens and the n that followed greedily
//   out     float32, little-endian, [tokens, vocab]: row i holds the raw logits after token i
//
// K and V are in F32 and flash attention is off, which brings llama.cpp closest to the equations.
// Prompt tokens are evaluated in one batch, greedy ones one by one. Rows are written as soon as
// they are known, so memory holds one batch of rows instead of the whole result.

import fs from "node:fs";
import {getLlama} from "node-llama-cpp";

// No sampler may change the logits: the temperature is 1 and every filter is off.
const kRawLogits = {
    generateNext: {logits: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}
};
const kRowsAtOnce = 64;

function toRow(logits, vocab) {
    if (logits?.size !== vocab)
        throw new Error(`llama.cpp gave ${logits?.size} logits for a vocabulary of ${vocab}`);
    const row = new Float32Array(vocab);
    for (const [token, value] of logits)
        row[token] = value;
    return row;
}

function argmax(row) {
    let best = 0;
    for (let i = 1; i < row.length; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

async function evaluate(sequence, tokens, vocab, file) {
    let last;
    for (let at = 0; at < tokens.length; at += kRowsAtOnce) {
        const part = tokens.slice(at, at + kRowsAtOnce).map((token) => [token, kRawLogits]);
        for (const output of await sequence.controlledEvaluate(part)) {
            last = toRow(output?.next?.logits, vocab);
            fs.writeSync(file, last);
        }
    }
    return argmax(last);
}

async function run(llama, job) {
    const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0}).catch((error) => {
        throw new Error(`llama.cpp does not load ${job.model}`, {cause: error});
    });
    const context = await model.createContext({
        contextSize: job.tokens.length + job.greedy + 1,
        batchSize: kRowsAtOnce,
        threads: 1,
        flashAttention: false,
        ...(job.adapters ? {lora: {adapters: job.adapters, threads: 1}} : {}),
        experimentalKvCacheKeyType: "F32",
        experimentalKvCacheValueType: "F32"
    });
    const vocab = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
    const file = fs.openSync(job.logits, "w");
    const sequence = context.getSequence();
    const tokens = [...job.tokens];
    let next = await evaluate(sequence, tokens, vocab, file);
    for (let i = 0; i < job.greedy; i++) {
        tokens.push(next);
        next = await evaluate(sequence, [next], vocab, file);
    }
    fs.closeSync(file);
    await context.dispose();
    await model.dispose();
    return {tokens, vocab};
}

// readFileSync(0) would fail if the writer pauses, because Node may have made standard input
// non-blocking.
async function readInput() {
    const chunks = [];
    for await (const chunk of process.stdin)
        chunks.push(chunk);
    return Buffer.concat(chunks).toString("utf8");
}

const jobs = JSON.parse(await readInput());
const llama = await getLlama({gpu: false, build: "never", maxThreads: 2, logLevel: "error"});
const results = [];
for (const job of jobs)
    results.push(await run(llama, job));
await llama.dispose();
process.stdout.write(JSON.stringify(results) + "\n");
