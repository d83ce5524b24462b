// Starts the server for a test: with the model that ships, or with one that says what a script says
// (tests/support/scripted_model.h).
import {execFileSync, spawn} from 'node:child_process';
import {once} from 'node:events';
import {mkdtempSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {createInterface} from 'node:readline';

const build = new URL('../../build/dev/', import.meta.url).pathname;
const kvcache = process.env.KVCACHE ?? `${build}kvcache`;
const writeScripted = process.env.KVCACHE_SCRIPTED_MODEL ??
    `${build}tests/clients/kvcache_scripted_model`;
const story = new URL('../../models/story.gguf', import.meta.url).pathname;

// Returns {url, stop()}; stop() checks that the server ends as documented.
async function start(model, {store = 'none', models, context = 512} = {}) {
  const flags = ['--port', '0', '--sequences', '4', '--ctx', context, '--store', store];
  const child = spawn(kvcache, ['serve', model, ...flags],
                      {stdio: ['ignore', 'ignore', 'pipe'], env: {...process.env, KVCACHE_MODELS: models}});
  const ended = once(child, 'exit');
  const lines = createInterface({input: child.stderr});
  const seen = [];
  const url = await new Promise((resolve, reject) => {
    lines.on('line', (line) => {
      seen.push(line);
      const found = line.match(/http:\/\/\S+/);
      if (found) resolve(found[0]);
    });
    ended.then(() => reject(new Error(`the server ended: ${seen.join('\n')}`)));
  });
  const stop = async () => {
    child.kill('SIGTERM');
    const [status] = await ended;
    if (status !== 0) throw new Error(`the server's status is ${status}: ${seen.join('\n')}`);
  };
  return {url, stop};
}

export const startStory = () => start(story);

// With a store of prefixes, and a list of models that clients change.
export async function startChangeable() {
  const folder = mkdtempSync(join(tmpdir(), 'kvcache-clients-'));
  const server = await start(story, {store: 'memory', models: join(folder, 'models')});
  const stop = async () => {
    await server.stop();
    rmSync(folder, {recursive: true});
  };
  return {url: server.url, stop};
}

// With arguments, the model calls that tool, reads so many tokens and has that name.
export async function startScripted(tool, args, context = 512, name = 'scripted') {
  const folder = mkdtempSync(join(tmpdir(), 'kvcache-clients-'));
  const model = join(folder, `${name}.gguf`);
  execFileSync(writeScripted, tool ? [model, tool, JSON.stringify(args), context] : [model]);
  const server = await start(model, {context});
  const stop = async () => {
    await server.stop();
    rmSync(folder, {recursive: true});
  };
  return {url: server.url, stop};
}

export const question = 'Tell me a story about a cat.';
export const weather = {
  name: 'get_weather',
  description: 'Returns the weather of a city.',
  schema: {type: 'object', properties: {city: {type: 'string'}}, required: ['city']},
};
// What the scripted model says when it has the tool above.
export const scripted = {
  thoughts: 'The user wants the weather.',
  text: 'Let me look.',
  arguments: {city: 'Paris'},
  answer: 'The sun shines.',
};
