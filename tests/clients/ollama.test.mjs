import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {Ollama} from 'ollama';

import {question, scripted, startChangeable, startScripted, startStory, weather} from './server.mjs';

let story, tools, changeable, client, toolClient;
before(async () => {
  [story, tools, changeable] =
      await Promise.all([startStory(), startScripted(), startChangeable()]);
  client = new Ollama({host: story.url});
  toolClient = new Ollama({host: tools.url});
});
after(() => Promise.all([story.stop(), tools.stop(), changeable.stop()]));

const request = {
  model: 'story',
  messages: [{role: 'user', content: question}],
  options: {seed: 7, num_predict: 24},
};

test('describes the model', async () => {
  const [major, minor, patch] = (await client.version()).version.split('.').map(Number);
  assert.ok(major > 0 || minor > 6 || (minor === 6 && patch >= 4));
  assert.deepEqual((await client.list()).models.map((model) => model.name), ['story:latest']);
  assert.deepEqual((await client.show({model: 'story'})).capabilities, ['completion']);
  assert.equal((await client.ps()).models.length, 1);
});

test('lists have what clients show', async () => {
  const [model] = (await client.list()).models;
  assert.match(model.digest, /^[0-9a-f]{64}$/);
  assert.ok(model.details.parameter_size && model.details.quantization_level && model.details.family);
  assert.deepEqual((await client.show({model: 'story'})).details, model.details);
});

test('a last message of the assistant is continued', async () => {
  const begun = [...request.messages, {role: 'assistant', content: 'Once upon a time'}];
  const options = {temperature: 0, num_predict: 8};
  const {message} = await client.chat({model: 'story', messages: begun, options});
  const raw = await client.generate(
      {model: 'story', prompt: `${question}Once upon a time`, raw: true, options});
  assert.equal(message.content, raw.response);
});

test('a chat has the same text streamed and not', async () => {
  const whole = await client.chat(request);
  assert.equal(whole.done_reason, 'length');
  assert.equal(whole.eval_count, 24);
  let text = '';
  let last;
  for await (const part of await client.chat({...request, stream: true})) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.ok(last.done);
  assert.equal(last.prompt_eval_cached_count, last.prompt_eval_count - 1);
});

test('a prompt', async () => {
  const whole = await client.generate({model: 'story', prompt: question, options: request.options});
  assert.equal(whole.response, (await client.chat(request)).message.content);
});

test('models are loaded and let go', async () => {
  const own = new Ollama({host: changeable.url});
  const prompt = `${question} `.repeat(20);
  const ask = async (keep_alive) => (await own.generate({...request, prompt, messages: undefined, keep_alive}));
  assert.ok((await ask('10m')).prompt_eval_cached_count < 16);
  const [running] = (await own.ps()).models;
  const minutes = (new Date(running.expires_at) - Date.now()) / 60000;
  assert.ok(minutes > 8 && minutes < 11, `${minutes}`);
  assert.equal((await own.generate({model: 'story', keep_alive: 0})).done_reason, 'unload');
  for (let i = 0; i < 60 && (await own.ps()).models.length > 0; ++i) {
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.equal((await own.ps()).models.length, 0);
  assert.equal((await own.chat({model: 'story', messages: [], keep_alive: -1})).done_reason, 'load');
  assert.ok(new Date((await own.ps()).models[0].expires_at) - Date.now() > 365 * 86400e3);
  const again = await ask(-1);
  assert.ok(again.prompt_eval_cached_count > again.prompt_eval_count / 2);
});

test('models are created, copied and deleted', async () => {
  const own = new Ollama({host: changeable.url});
  const names = async () => (await own.list()).models.map((model) => model.name);
  const created = await own.create({
    model: 'pirate', from: 'story', system: 'You are a pirate.', stream: false,
    parameters: {temperature: 0, num_predict: 6, stop: ['zzz']},
  });
  assert.equal(created.status, 'success');
  await own.copy({source: 'pirate', destination: 'second'});
  assert.deepEqual(await names(), ['story:latest', 'pirate:latest', 'second:latest']);
  const shown = await own.show({model: 'second'});
  assert.equal(shown.system, 'You are a pirate.');
  assert.match(shown.parameters, /^temperature +0$/m);
  const messages = [{role: 'user', content: question}];
  const answer = await own.chat({model: 'second', messages});
  assert.equal(answer.eval_count, 6);
  assert.equal(answer.model, 'second');
  const system = {role: 'system', content: 'You are a pirate.'};
  const same = await own.chat({model: 'story', messages: [system, ...messages],
                               options: {temperature: 0, num_predict: 6}});
  assert.equal(answer.message.content, same.message.content);
  await own.delete({model: 'pirate'});
  assert.deepEqual(await names(), ['story:latest', 'second:latest']);
  await assert.rejects(own.delete({model: 'pirate'}), /there is no model 'pirate'/);
  await assert.rejects(own.delete({model: 'story'}), /may remove/);
  await assert.rejects(own.create({model: 'story', from: 'second'}), /command line/);
  await assert.rejects(own.create({model: 'new', from: '../models/story.gguf'}), /there is no model/);
  await assert.rejects(own.create({model: '../new', from: 'story'}), /name/);
  await assert.rejects(own.create({model: 'new', from: 'story', parameters: {heat: 1}}), /no parameter/);
  await assert.rejects(own.create({model: 'new', from: 'story', parameters: {temperature: 9}}), /temperature/);
  await assert.rejects(own.create({model: 'new', from: 'story', template: '{% if %}'}), /TEMPLATE/);
});

test('errors are said', async () => {
  await assert.rejects(client.chat({...request, model: 'other'}), /there is no model/);
  await assert.rejects(client.chat({...request, format: {type: 'string', minLength: -1}}), /'minLength'/);
});

test('an answer follows a schema', async () => {
  const format = {type: 'object', properties: {mood: {enum: ['calm', 'wild']}}, required: ['mood']};
  const whole = await client.chat({...request, format});
  assert.match(JSON.parse(whole.message.content).mood, /^(calm|wild)$/);
});

test('calls a tool and answers with its result', async () => {
  const messages = [{role: 'user', content: 'How is the weather?'}];
  const ask = {
    model: 'scripted',
    messages,
    think: true,
    tools: [{
      type: 'function',
      function: {name: weather.name, description: weather.description, parameters: weather.schema},
    }],
  };
  const {message} = await toolClient.chat(ask);
  assert.equal(message.thinking, scripted.thoughts);
  assert.equal(message.content, scripted.text);
  assert.deepEqual(message.tool_calls[0].function.arguments, scripted.arguments);
  messages.push(message, {role: 'tool', tool_name: weather.name, content: 'sun'});
  assert.equal((await toolClient.chat(ask)).message.content, scripted.answer);
});

test('embeddings', async () => {
  const {embeddings, prompt_eval_count, total_duration} =
      await client.embed({model: 'story', input: ['A dog.', 'Once upon a time']});
  assert.equal(embeddings.length, 2);
  assert.ok(prompt_eval_count > 4 && total_duration > 0);
  const one = await client.embed({model: 'story', input: 'A dog.'});
  assert.deepEqual(one.embeddings, [embeddings[0]]);
  const {embedding} = await client.embeddings({model: 'story', prompt: 'A dog.'});
  assert.equal(embedding.length, embeddings[0].length);
});
