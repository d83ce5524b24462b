// The page in headless Chromium, for its tests. KVCACHE_PAGE_SHOTS names a folder for screenshots.
import {after, before, test} from 'node:test';
import {join} from 'node:path';
import {chromium} from 'playwright-core';

import {startStory} from './server.mjs';

export const patience = 20000;  // ms, for what the page shows a second later
export let story;
let browser, withoutBrowser;

before(async () => {
  try {
    browser = await chromium.launch({
      executablePath: process.env.KVCACHE_CHROMIUM ?? '/usr/bin/chromium',
      args: ['--no-sandbox'],
      timeout: 90000,  // a machine that just installed it reads it from its disk
    });
  } catch (error) {
    withoutBrowser = `Chromium does not start on this machine: ${error.message.split('\n')[0]}`;
    return;
  }
  story = await startStory();
});
after(async () => {
  await browser?.close();
  await story?.stop();
});

// As where Chromium is not installed, the page is not tested where it does not start.
export const check = (name, run) => test(name, (context) => withoutBrowser ? context.skip(withoutBrowser) : run());

export const schemes = ['light', 'dark'];
export const desk = {width: 1280, height: 900}, phone = {width: 360, height: 740};

// Opens the page. `state`: a function that returns what /state says; without one, the server does. `prefix`: the same
// of /state/prefix.
export async function open({state, prefix, ...options} = {}) {
  const page = await browser.newPage({viewport: desk, ...options});
  const problems = [];
  const hosts = new Set();
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('request', (request) => hosts.add(new URL(request.url()).origin));
  const answerWith = (path, make) => page.route((url) => url.pathname === path, async (route) => {
    const made = make(new URL(route.request().url()).searchParams);
    if (made === null) await route.abort();
    else if (typeof made === 'number') await route.fulfill({status: made, json: {}});
    else await route.fulfill({json: made});
  });
  if (state) await answerWith('/state', state);
  if (prefix) await answerWith('/state/prefix', prefix);
  await page.goto(story.url);
  return {page, problems, hosts};
}

export async function shoot(page, name) {
  const folder = process.env.KVCACHE_PAGE_SHOTS;
  if (folder) await page.screenshot({path: join(folder, `${name}.png`), fullPage: true});
}

export const complete = (prompt, more = {}) => fetch(`${story.url}/v1/completions`, {
  method: 'POST',
  body: JSON.stringify({prompt, max_tokens: 8, temperature: 0, ...more}),
}).then((answer) => answer.json());
