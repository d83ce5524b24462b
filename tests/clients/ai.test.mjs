import {createOpenAI} from '@ai-sdk/openai';
import {generateText, jsonSchema, stepCountIs, streamText, tool} from 'ai';
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';

import {question, scripted, startScripted, startStory, weather} from './server.mjs';

let story, tools, model, toolModel;
before(async () => {
  [story, tools] = await Promise.all([startStory(), startScripted()]);
  const provider = (server) => createOpenAI({baseURL: `${server.url}/v1`, apiKey: 'none'});
  model = provider(story).chat('story');
  toolModel = provider(tools).chat('scripted');
});
after(() => Promise.all([story.stop(), tools.stop()]));

test('a text is the same streamed and not', async () => {
  const request = {prompt: question, maxOutputTokens: 24, seed: 7, maxRetries: 0};
  const whole = await generateText({model, ...request});
  assert.equal(whole.finishReason, 'length');
  assert.equal(whole.usage.outputTokens, 24);
  const stream = streamText({model, ...request});
  let text = '';
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, whole.text);
  const usage = await stream.usage;
  assert.equal(usage.cachedInputTokens, usage.inputTokens - 1);
});

test('runs a tool', async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const request = {
      model: toolModel,
      maxRetries: 0,
      prompt: 'How is the weather?',
      stopWhen: stepCountIs(3),
      tools: {
        [weather.name]: tool({
          description: weather.description,
          inputSchema: jsonSchema(weather.schema),
          execute: (input) => {
            seen.push(input);
            return 'sun';
          },
        }),
      },
    };
    const result = stream ? streamText(request) : await generateText(request);
    assert.equal(await result.text, scripted.answer);
    assert.deepEqual(seen, [scripted.arguments]);
    assert.deepEqual((await result.steps).map((step) => step.finishReason), ['tool-calls', 'stop']);
  }
});
