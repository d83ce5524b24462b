import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import OpenAI from 'openai';

import {question, scripted, startScripted, startStory, weather} from './server.mjs';

let story, tools, client, toolClient;
before(async () => {
  [story, tools] = await Promise.all([startStory(), startScripted()]);
  const make = (server) => new OpenAI({baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0});
  client = make(story);
  toolClient = make(tools);
});
after(() => Promise.all([story.stop(), tools.stop()]));

const request = {
  model: 'story',
  messages: [{role: 'user', content: question}],
  max_tokens: 24,
  seed: 7,
};
const functions = [{
  type: 'function',
  function: {name: weather.name, description: weather.description, parameters: weather.schema},
}];

test('lists the model', async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map((model) => model.id), ['story']);
  assert.equal((await client.models.retrieve('story')).id, 'story');
});

test('a chat has the same text streamed and not', async () => {
  const whole = await client.chat.completions.create(request);
  assert.equal(whole.choices[0].finish_reason, 'length');
  assert.equal(whole.usage.completion_tokens, 24);
  const stream = await client.chat.completions.create(
      {...request, stream: true, stream_options: {include_usage: true}});
  let text = '';
  let last;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    last = chunk;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(text.length > 10);
  assert.equal(last.usage.prompt_tokens_details.cached_tokens, last.usage.prompt_tokens - 1);
});

test('the helper for streams collects the answer', async () => {
  const whole = await client.chat.completions.create(request);
  const final = await client.chat.completions.stream(request).finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test('a completion stops at a string', async () => {
  const prompt = {model: 'story', prompt: 'Once upon a time', max_tokens: 40, temperature: 0};
  const text = (await client.completions.create(prompt)).choices[0].text;
  const cut = await client.completions.create({...prompt, stop: text.slice(8, 12)});
  assert.equal(cut.choices[0].text, text.slice(0, text.indexOf(text.slice(8, 12))));
  assert.equal(cut.choices[0].finish_reason, 'stop');
});

test('each of several prompts has its choices', async () => {
  const prompts = ['Once upon a time', 'The dog'];
  const ask = {model: 'story', max_tokens: 8, temperature: 0, n: 2};
  const alone = await Promise.all(prompts.map((prompt) => client.completions.create({...ask, prompt})));
  const texts = alone.flatMap((answer) => answer.choices.map((choice) => choice.text));
  const whole = await client.completions.create({...ask, prompt: prompts});
  assert.deepEqual(whole.choices.map((choice) => choice.text), texts);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  const streamed = ['', '', '', ''];
  for await (const chunk of await client.completions.create({...ask, prompt: prompts, stream: true})) {
    for (const choice of chunk.choices) streamed[choice.index] += choice.text;
  }
  assert.deepEqual(streamed, texts);
});

test('a stored response is streamed, listed and cannot be cancelled', async () => {
  const first = await client.responses.create({model: 'story', input: 'Hi', max_output_tokens: 8,
                                               text: {verbosity: 'low'}});
  let last;
  for await (const event of await client.responses.retrieve(first.id, {stream: true})) last = event;
  assert.equal(last.type, 'response.incomplete');
  assert.equal(last.response.output_text ?? last.response.output[0].content[0].text, first.output_text);
  const items = [];
  for await (const item of client.responses.inputItems.list(first.id, {limit: 1})) items.push(item);
  assert.deepEqual(items.map((item) => item.content[0].text), ['Hi']);
  await assert.rejects(client.responses.cancel(first.id), OpenAI.BadRequestError);
});

test('a conversation is made short and goes on', async () => {
  const input = [{role: 'user', content: question}, {role: 'assistant', content: 'A cat sat.'}];
  const short = await client.post('/responses/compact', {body: {model: 'story', input}});
  assert.equal(short.object, 'response.compaction');
  assert.deepEqual(short.output.map((item) => item.type), ['message', 'compaction']);
  const next = await client.responses.create(
      {model: 'story', input: [...short.output, {role: 'user', content: 'And then?'}], max_output_tokens: 8});
  assert.ok(next.output_text.length > 0);
});

test('a stream that is aborted ends', async () => {
  const stream = await client.chat.completions.create({...request, max_tokens: 400, stream: true});
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }
  assert.equal((await client.chat.completions.create(request)).choices.length, 1);
});

test('errors have their classes and fields', async () => {
  await assert.rejects(client.chat.completions.create({...request, model: 'other'}),
                       OpenAI.NotFoundError);
  await assert.rejects(
      client.chat.completions.create({...request, temperature: 9}),
      (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature');
  await assert.rejects(
      client.chat.completions.create({...request, response_format: {type: 'json_schema', json_schema: {name: 'x', schema: {not: {}}}}}),
      (error) => error instanceof OpenAI.BadRequestError && error.param === 'response_format');
});

test('calls a tool and answers with its result', async () => {
  const messages = [{role: 'user', content: 'How is the weather?'}];
  const ask = {model: 'scripted', messages, tools: functions, temperature: 0};
  const first = await toolClient.chat.completions.create(ask);
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  const message = first.choices[0].message;
  assert.equal(message.content, scripted.text);
  assert.equal(message.tool_calls.length, 1);
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), scripted.arguments);
  messages.push(message, {role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'sun'});
  const second = await toolClient.chat.completions.create(ask);
  assert.equal(second.choices[0].message.content, scripted.answer);
});

test('the helper for tools runs the function', async () => {
  const seen = [];
  const runner = toolClient.chat.completions.runTools({
    model: 'scripted',
    stream: true,
    messages: [{role: 'user', content: 'How is the weather?'}],
    tools: [{
      type: 'function',
      function: {
        ...functions[0].function,
        parse: JSON.parse,
        function: (input) => {
          seen.push(input);
          return 'sun';
        },
      },
    }],
  });
  assert.equal(await runner.finalContent(), scripted.answer);
  assert.deepEqual(seen, [scripted.arguments]);
});

test('responses are the same streamed and not, and go on from another', async () => {
  const ask = {model: 'scripted', input: 'How is the weather?', temperature: 0,
               tools: [{type: 'function', name: weather.name, description: weather.description,
                        parameters: weather.schema, strict: false}]};
  const whole = await toolClient.responses.create(ask);
  assert.equal(whole.status, 'completed');
  assert.equal(whole.output_text, scripted.text);
  const call = whole.output.find((item) => item.type === 'function_call');
  assert.equal(call.name, weather.name);
  assert.deepEqual(JSON.parse(call.arguments), scripted.arguments);

  const stream = toolClient.responses.stream(ask);
  const types = [];
  let last = -1;
  let args = '';
  for await (const event of stream) {
    types.push(event.type);
    assert.equal(event.sequence_number, ++last);
    if (event.type === 'response.function_call_arguments.delta') args += event.delta;
  }
  assert.equal(types[0], 'response.created');
  assert.equal(types.at(-1), 'response.completed');
  assert.deepEqual(JSON.parse(args), scripted.arguments);
  const streamed = await stream.finalResponse();
  assert.deepEqual(streamed.output.map((item) => item.type), whole.output.map((item) => item.type));
  const textOf = (response) => response.output.find((item) => item.type === 'message').content[0].text;
  assert.equal(textOf(streamed), textOf(whole));
  const {usage} = streamed;
  assert.equal(usage.input_tokens_details.cached_tokens, usage.input_tokens - 1);

  const next = await toolClient.responses.create({
    ...ask, previous_response_id: whole.id,
    input: [{type: 'function_call_output', call_id: call.call_id, output: 'sun'}],
  });
  assert.equal(next.output_text, scripted.answer);
  assert.equal(textOf(await toolClient.responses.retrieve(next.id)), scripted.answer);
  await toolClient.responses.delete(next.id);
  await assert.rejects(toolClient.responses.retrieve(next.id), OpenAI.NotFoundError);
});

// The client asks for base64 by itself, and decodes it.
test('embeddings are the same as floats and as base64', async () => {
  const request = {model: 'story', input: ['A dog.', 'Once upon a time']};
  const decoded = await client.embeddings.create(request);
  const plain = await client.embeddings.create({...request, encoding_format: 'float'});
  assert.deepEqual(decoded.data.map((row) => row.index), [0, 1]);
  for (const [i, row] of decoded.data.entries()) {
    assert.deepEqual([...row.embedding], plain.data[i].embedding.map(Math.fround));
  }
  assert.ok(decoded.usage.total_tokens > 4);
  const cut = await client.embeddings.create({...request, dimensions: 8});
  assert.equal(cut.data[1].embedding.length, 8);
  await assert.rejects(client.embeddings.create({...request, input: []}),
                       (error) => error.status === 400 && error.param === 'input');
});
