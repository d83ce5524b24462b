// Computes llama.cpp's vectors and scores for given token ids, through node-llama-cpp, for compare.py.
//
// Usage: node llama_cpp.mjs < JOBS.json > RESULTS.json
//   job     {"model": path, "inputs": [[id, ...], ...]}     the first id is the vocabulary's <s>
//   result  [[value, ...], ...]                             not normalized; a reranker's scores

import {getLlama} from "node-llama-cpp";

const kContext = 1024;

async function run(llama, job) {
    const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0});
    const context = await model.createEmbeddingContext({
        contextSize: kContext,
        batchSize: kContext,
        threads: 1
    });
    const vectors = [];
    for (const input of job.inputs)
        vectors.push([...(await context.getEmbeddingFor(input)).vector]);
    await context.dispose();
    await model.dispose();
    return vectors;
}

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
