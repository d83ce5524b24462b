// Computes llama.cpp's tokens of a query and a document, through node-llama-cpp, for pairs.py.
//
// Usage: node llama_pairs.mjs < JOBS.json > RESULTS.json
//   job     {"model": path, "template": text or null, "add_sep": whether the file says so, "pairs": [[query, document], …]}
//   result  [[id, …], …]
//
// With a template the filled text is encoded with its special tokens. Without one the parts are joined as llama.cpp's server
// joins them: <bos> query <eos> <sep> document <eos>, each token as the vocabulary's flags say; without an end token the
// separator takes its place.

import {getLlama} from "node-llama-cpp";

function encode(model, job, [query, document]) {
    if (job.template != null) {
        const filled = job.template.replaceAll("{query}", () => query).replaceAll("{document}", () => document);
        return [...model.tokenize(filled, true)];
    }
    const {bos, eos, sep, shouldPrependBosToken, shouldAppendEosToken} = model.tokens;
    const end = shouldAppendEosToken ? [eos ?? sep] : [];
    return [
        ...(shouldPrependBosToken ? [bos] : []),
        ...model.tokenize(query, false),
        ...end,
        ...(job.add_sep ? [sep] : []),
        ...model.tokenize(document, false),
        ...end
    ];
}

async function readInput() {
    const chunks = [];
    for await (const chunk of process.stdin)
        chunks.push(chunk);
    return Buffer.concat(chunks).toString("utf8");
}

const jobs = JSON.parse(await readInput());
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "disabled"});
const results = [];
for (const job of jobs) {
    const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0, vocabOnly: true});
    results.push(job.pairs.map((pair) => encode(model, job, pair)));
    await model.dispose();
}
await llama.dispose();
process.stdout.write(JSON.stringify(results) + "\n");
