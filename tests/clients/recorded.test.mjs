// Requests that clients send, from the files of the folder recorded, and what must come back
// (recorded/README.md explains the files).
import assert from 'node:assert/strict';
import {readdirSync, readFileSync} from 'node:fs';
import {after, before, describe, test} from 'node:test';

import {difference} from './recorded/pattern.mjs';
import {scripted, startScripted, startStory, weather} from './server.mjs';

const folder = new URL('recorded/', import.meta.url);
const files = readdirSync(folder).filter((name) => name.endsWith('.json'));
const start = {
  story: startStory,
  scripted: () => startScripted(weather.name, scripted.arguments, 4096),
};

// Returns the JSON values of a stream: of server-sent events, or one in each line.
function eventsOf(text) {
  const events = /^(data|event):/.test(text);
  const lines = text.split('\n').filter((line) => (events ? line.startsWith('data:') : line.trim()));
  return lines.map((line) => (events ? line.slice(5).trim() : line))
      .filter((line) => line !== '[DONE]').map((line) => JSON.parse(line));
}

// Compares an answer with what a case says of it.
async function check(response, answer) {
  const text = await response.text();
  assert.equal(response.status, answer.status, text);
  const type = response.headers.get('content-type');
  if (answer.type) assert.ok(type.startsWith(answer.type), `${type}: ${text}`);
  if (answer.body) assert.equal(difference(JSON.parse(text), answer.body), null, text);
  if (answer.events) assert.equal(difference(eventsOf(text), answer.events), null, text);
}

for (const file of files) {
  const {client, model, cases} = JSON.parse(readFileSync(new URL(file, folder)));
  describe(client, () => {
    let server;
    before(async () => {
      server = await start[model]();
    });
    after(() => server.stop());
    for (const {title, request, answer} of cases) {
      test(title, async () => {
        const headers = {...request.headers};
        if (request.body) headers['Content-Type'] ??= 'application/json';
        const response = await fetch(server.url + request.path,
            {method: request.method, headers, body: request.body && JSON.stringify(request.body)});
        await check(response, answer);
      });
    }
  });
}
