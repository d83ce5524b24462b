// Tokenises and decodes with llama.cpp, through node-llama-cpp, for compare.py.
//
// Usage: node llama_tokenize.mjs FOLDER
//   reads   FOLDER/strings.json   {"models": [{"path": p, "every": n, "first": i, "plain": q},
//                                             ...],
//                                 "strings": [text, ...]}
//                                 "plain" is optional: a model for plain text, whose
//                                 user-defined marks are control tokens
//   writes  FOLDER/llama.I.json   for model I, about every n-th string from i on:
//                                 {"plain": [[id, ...], ...],
//                                 "parsed": [[id, ...], ...] of every fourth of those,
//                                 "decoded": [text of the plain ids, ...],
//                                 "pieces": [text of each token], "ends": [id, ...]}
//
// model.tokenize with two arguments passes the text to llama_tokenize unchanged, without
// begin-of-sequence. "parsed" parses special tokens in the text.

import fs from "node:fs";
import path from "node:path";
import {getLlama} from "node-llama-cpp";

const folder = process.argv[2];
const {models, strings} = JSON.parse(fs.readFileSync(path.join(folder, "strings.json"), "utf8"));
// The log level is not "error", because node-llama-cpp logs an error when it cannot estimate the
// memory of absent weights.
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "disabled"});
for (const [index, {path: modelPath, every, first, plain: plainPath}] of models.entries()) {
    const model = await llama.loadModel({modelPath, gpuLayers: 0, vocabOnly: true});
    const size = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
    const ids = Array.from({length: size}, (_, id) => id);
    const some = strings.filter((_, i) => i % every === first);
    const forPlain = plainPath == null
        ? model
        : await llama.loadModel({modelPath: plainPath, gpuLayers: 0, vocabOnly: true});
    const plain = some.map((text) => forPlain.tokenize(text, false));
    if (plainPath != null) await forPlain.dispose();
    fs.writeFileSync(path.join(folder, `llama.${index}.json`), JSON.stringify({
        plain,
        parsed: some.filter((_, i) => i % 4 === 0).map((text) => model.tokenize(text, true)),
        decoded: plain.map((tokens) => model.detokenize(tokens, false)),
        pieces: ids.map((id) => model.detokenize([id], true)),
        ends: ids.filter((id) => model.isEogToken(id))
    }));
    await model.dispose();
}
await llama.dispose();
