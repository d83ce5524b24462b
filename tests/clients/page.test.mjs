// The page in headless Chromium: it loads without an error, is accessible, follows a generation, shows a fork of the trie,
// and never reads a text as HTML. KVCACHE_PAGE_SHOTS names a folder for screenshots.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join} from 'node:path';
import {chromium} from 'playwright-core';

import {startStory} from './server.mjs';

const patience = 20000;  // ms, for what the page shows a second later
let story, browser, withoutBrowser;
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
const check = (name, run) => test(name, (context) => withoutBrowser ? context.skip(withoutBrowser) : run());

async function open(options = {}) {
  const page = await browser.newPage({viewport: {width: 1280, height: 900}, ...options});
  const problems = [];
  const hosts = new Set();
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('request', (request) => hosts.add(new URL(request.url()).origin));
  await page.goto(story.url);
  await page.getByRole('status').getByText('idle', {exact: true}).waitFor();
  return {page, problems, hosts};
}

async function ask(page, text, most = 30000) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', {name: 'Send'}).click();
  await page.locator('#stop').isEnabled();
  await page.locator('#send:not([disabled])').waitFor({timeout: most});
}

async function shoot(page, name) {
  const folder = process.env.KVCACHE_PAGE_SHOTS;
  if (folder) await page.screenshot({path: join(folder, `${name}.png`), fullPage: true});
}

const complete = (prompt, more = {}) => fetch(`${story.url}/v1/completions`, {
  method: 'POST',
  body: JSON.stringify({prompt, max_tokens: 8, temperature: 0, ...more}),
}).then((answer) => answer.json());

// No violations that axe calls serious or critical, in both color schemes, with all parts filled.
check('is accessible', async () => {
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  for (const colorScheme of ['light', 'dark']) {
    const {page} = await open({colorScheme});
    await ask(page, 'Where do boats sleep?');  // another prompt than those whose cached tokens are counted
    await page.locator('#ended tbody tr').first().waitFor({timeout: patience});
    await page.evaluate(() => {
      globalThis.fetch = () => new Promise(() => {});  // from here on nothing is drawn anew below axe's eyes
    });
    await page.waitForTimeout(500);
    await page.evaluate(axe);
    const {violations, passes} = await page.evaluate(() => globalThis.axe.run());
    const serious = violations.filter(({impact}) => ['serious', 'critical'].includes(impact));
    assert.deepEqual(serious.map(({id, nodes}) => [id, nodes.map(({html}) => html)]), []);
    assert.ok(passes.length > 10);
    await page.close();
  }
});

check('shows the chat, its cached tokens and the sequences', async () => {
  const {page, problems, hosts} = await open();
  await ask(page, 'Tell me a story about a cat.');
  const log = page.locator('#log');
  assert.match(await log.innerText(), /prompt: [01] of \d+ tokens from the cache/);
  assert.ok((await page.locator('.t-generated').count()) > 5);
  await page.getByRole('button', {name: 'New chat'}).click();
  await ask(page, 'Tell me a story about a dog.');
  const cached = await page.locator('.t-cached').count();
  const computed = await page.locator('.t-computed').count();
  assert.ok(cached > 5 && computed >= 1, `${cached} cached, ${computed} computed`);
  await page.locator('#ended tbody').getByText('live').first().waitFor({timeout: patience});
  await shoot(page, 'light');
  assert.deepEqual(problems, []);
  assert.deepEqual([...hosts], [story.url]);
  await page.close();
});

check('follows a generation', async () => {
  const {page, problems} = await open();
  await complete('Once upon a time', {max_tokens: 450, temperature: 1, seed: 1, n: 4});
  await page.locator('#ended tbody tr').first().waitFor({timeout: patience});
  await page.locator('#chart-rate path').waitFor({state: 'attached', timeout: patience});
  await page.locator('#chart-tiers path').waitFor({state: 'attached', timeout: patience});
  await page.locator('#key-tiers').getByText(/^live [0-9]/).waitFor({timeout: patience});
  assert.deepEqual(problems, []);
  await page.close();
});

// Words that no story has: the trie also shows those of the other tests.
check('shows where prompts fork', async () => {
  const {page, problems} = await open({colorScheme: 'dark'});
  const shared = 'Zorgon had a violet zeppelin and a little dog. One day they went to the lake, and ';
  await complete(`${shared}there was a xylophone.`);
  await complete(`${shared}it was cold in Quebec.`);
  const nodes = page.getByRole('treeitem');
  const forked = nodes.filter({has: page.locator('.from')});
  await forked.filter({hasText: 'xylophone'}).first().waitFor({timeout: patience});
  await forked.filter({hasText: 'Quebec'}).first().waitFor({timeout: patience});
  const parent = nodes.filter({hasText: 'violet zeppelin'});
  assert.equal(await parent.count(), 1);
  assert.match(await parent.getAttribute('aria-label'), /2 prompts go on from here/);
  await nodes.first().focus();
  await page.keyboard.press('ArrowDown');
  assert.equal(await nodes.nth(1).evaluate((node) => node === document.activeElement), true);
  await shoot(page, 'dark');
  assert.deepEqual(problems, []);
  await page.close();
});

check('texts are no HTML', async () => {
  const {page, problems} = await open({viewport: {width: 400, height: 800}});
  const hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
  await complete(`${hostile} is a text.`);
  await ask(page, hostile);
  await page.getByRole('treeitem').filter({hasText: '<img'}).first().waitFor({timeout: patience});
  assert.equal(await page.title(), 'kvcache');
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.locator('body script').count(), 0);
  await shoot(page, 'narrow');
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  assert.equal(wide, false, 'a narrow screen needs no scrolling to the side');
  assert.deepEqual(problems, []);
  await page.close();
});
