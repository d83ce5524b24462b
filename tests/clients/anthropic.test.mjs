import Anthropic from '@anthropic-ai/sdk';
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';

import {question, scripted, startScripted, startStory, weather} from './server.mjs';

let story, tools, client, toolClient;
before(async () => {
  [story, tools] = await Promise.all([startStory(), startScripted()]);
  const make = (server) => new Anthropic({baseURL: server.url, apiKey: 'none', maxRetries: 0});
  client = make(story);
  toolClient = make(tools);
});
after(() => Promise.all([story.stop(), tools.stop()]));

const request = {
  model: 'story',
  max_tokens: 24,
  temperature: 0,
  system: [{type: 'text', text: 'Be kind.'}],
  messages: [{role: 'user', content: question}],
};
const custom = [{
  name: weather.name,
  description: weather.description,
  input_schema: weather.schema,
}];

test('lists the model', async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.deepEqual(models.map(({id, type, display_name}) => [id, type, display_name]),
                   [['story', 'model', 'story']]);
  assert.ok(!Number.isNaN(Date.parse(models[0].created_at)));
  assert.equal((await client.models.retrieve('story')).display_name, 'story');
});

test('a prompt beyond the context has the words that agents look for', async () => {
  const messages = [{role: 'user', content: `${question} `.repeat(400)}];
  await assert.rejects(
      client.messages.create({...request, messages}),
      (error) => error instanceof Anthropic.BadRequestError &&
          /^prompt is too long: \d+ tokens > \d+ maximum$/.test(error.error.error.message));
});

test('a message has the same text streamed and not, and its cache in the usage', async () => {
  const whole = await client.messages.create(request);
  assert.equal(whole.stop_reason, 'max_tokens');
  assert.equal(whole.content.length, 1);
  const {input_tokens: counted} =
      await client.messages.countTokens({model: 'story', system: request.system,
                                         messages: request.messages});
  const stream = client.messages.stream(request);
  const events = [];
  stream.on('streamEvent', (event) => events.push(event));
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, whole.content[0].text);
  assert.equal(events[0].message.usage.cache_read_input_tokens, counted - 1);
  assert.equal(final.usage.cache_read_input_tokens + final.usage.input_tokens +
               final.usage.cache_creation_input_tokens, counted);
  assert.equal(final.usage.output_tokens, 24);
});

test('stop sequences', async () => {
  const text = (await client.messages.create(request)).content[0].text;
  const stop = text.slice(6, 10);
  const cut = await client.messages.create({...request, stop_sequences: [stop]});
  assert.equal(cut.stop_reason, 'stop_sequence');
  assert.equal(cut.stop_sequence, stop);
  assert.equal(cut.content[0].text, text.slice(0, text.indexOf(stop)));
});

test('system messages among the others, and an answer that is begun', async () => {
  const messages = [
    ...request.messages, {role: 'assistant', content: 'Yes.'},
    {role: 'system', content: [{type: 'text', text: 'Speak of dogs.'}]}, {role: 'user', content: 'Go on.'}];
  const {input_tokens} = await client.messages.countTokens(
      {model: request.model, system: request.system, messages});
  const whole = await client.messages.create({...request, messages});
  const {usage} = whole;
  assert.equal(
      usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens, input_tokens);
  const begun = [...request.messages, {role: 'assistant', content: 'Once upon a time'}];
  const rest = await client.messages.create({...request, messages: begun});
  assert.equal(rest.content.length, 1);
  assert.ok(!rest.content[0].text.startsWith('Once upon a time'));
});

test('errors have their classes', async () => {
  await assert.rejects(client.messages.create({...request, model: 'other'}),
                       Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({...request, temperature: 9}),
                       Anthropic.BadRequestError);
});

test('thinks, calls a tool and answers with its result', async () => {
  const messages = [{role: 'user', content: 'How is the weather?'}];
  const ask = {
    model: 'scripted',
    max_tokens: 100,
    messages,
    tools: custom,
    thinking: {type: 'enabled', budget_tokens: 1024},
  };
  for (const create of [(body) => toolClient.messages.create(body),
                        (body) => toolClient.messages.stream(body).finalMessage()]) {
    const first = await create(ask);
    assert.equal(first.stop_reason, 'tool_use');
    assert.deepEqual(first.content.map((block) => block.type), ['thinking', 'text', 'tool_use']);
    assert.equal(first.content[0].thinking, scripted.thoughts);
    assert.equal(first.content[1].text, scripted.text);
    assert.deepEqual(first.content[2].input, scripted.arguments);
    const result = {type: 'tool_result', tool_use_id: first.content[2].id, content: 'sun'};
    const second = await create({...ask, messages: [
      ...messages, {role: 'assistant', content: first.content}, {role: 'user', content: [result]}]});
    assert.equal(second.stop_reason, 'end_turn');
    assert.equal(second.content[0].text, scripted.answer);
  }
});
