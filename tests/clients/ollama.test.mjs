import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {Ollama} from 'ollama';

import {question, scripted, startScripted, startStory, weather} from './server.mjs';

let story, tools, client, toolClient;
before(async () => {
  [story, tools] = await Promise.all([startStory(), startScripted()]);
  client = new Ollama({host: story.url});
  toolClient = new Ollama({host: tools.url});
});
after(() => Promise.all([story.stop(), tools.stop()]));

const request = {
  model: 'story',
  messages: [{role: 'user', content: question}],
  options: {seed: 7, num_predict: 24},
};

test('describes the model', async () => {
  assert.match((await client.version()).version, /^[0-9.]+$/);
  assert.deepEqual((await client.list()).models.map((model) => model.name), ['story:latest']);
  assert.deepEqual((await client.show({model: 'story'})).capabilities, ['completion']);
  assert.equal((await client.ps()).models.length, 1);
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

test('errors are said', async () => {
  await assert.rejects(client.chat({...request, model: 'other'}), /there is no model/);
  await assert.rejects(client.chat({...request, format: 'json'}), /'format'/);
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
