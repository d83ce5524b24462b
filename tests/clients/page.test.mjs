// The page of a server that is used: it loads without an error, follows a generation, shows a fork of the trie, and never
// reads a text as HTML.
import assert from 'node:assert/strict';

import {check, complete, open, patience, phone, shoot, story} from './browser.mjs';

const idle = (page) => page.getByRole('status').getByText('idle', {exact: true}).waitFor({timeout: patience});

async function ask(page, text, most = 30000) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', {name: 'Send'}).click();
  await page.locator('#stop').isEnabled();
  await page.locator('#send:not([disabled])').waitFor({timeout: most});
}

check('shows the chat, its cached tokens and the sequences', async () => {
  const {page, problems, hosts} = await open();
  await idle(page);
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
  const first = page.locator('#ended tbody tr').first();
  await first.getByText('POST /v1/chat/completions').waitFor();
  await first.getByText('story', {exact: true}).waitFor();
  await first.getByText('done', {exact: true}).waitFor();
  await first.getByText(/^\d\d:\d\d:\d\d$/).waitFor();
  await shoot(page, 'light');
  assert.deepEqual(problems, []);
  assert.deepEqual([...hosts], [story.url]);
  await page.close();
});

check('follows a generation', async () => {
  const {page, problems} = await open();
  await idle(page);
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
  await page.locator('#trie [tabindex="0"]').focus();
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowDown');
  assert.equal(await nodes.nth(1).evaluate((node) => node === document.activeElement), true);
  await shoot(page, 'dark');
  assert.deepEqual(problems, []);
  await page.close();
});

check('texts are no HTML', async () => {
  const {page, problems} = await open({viewport: phone});
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

// A conversation that grows by a token at a time is one row, whose whole text the keyboard and a finger reach.
check('folds chains, and opens whole texts', async () => {
  const words = Array.from({length: 40}, (_, i) => `Quagga ${i}`).join(' ');
  for (let more = 0; more < 6; ++more) await complete(`${words}${' up'.repeat(more)}`, {max_tokens: 1});
  const {page, problems} = await open({viewport: phone, hasTouch: true});
  const row = page.getByRole('treeitem').filter({hasText: 'Quagga 0 '});
  await row.waitFor({timeout: patience});
  assert.equal(await row.count(), 1);
  assert.ok(!(await row.locator('.text').innerText()).includes('Quagga 20'), 'the middle is left out');
  await row.locator('.line').tap();
  await row.locator('.body').getByText('Quagga 20 Quagga 21').waitFor({timeout: patience});
  await row.locator('.line').tap();
  assert.equal(await row.locator('.body').count(), 0);
  await row.focus();
  await page.keyboard.press('Enter');
  await row.locator('.body').getByText('Quagga 20 Quagga 21').waitFor({timeout: patience});
  await page.keyboard.press('Tab');
  assert.equal(await row.locator('.body').evaluate((body) => body === document.activeElement), true);
  assert.equal(await page.locator('[title]').count(), 0, 'a finger reaches no title');
  assert.deepEqual(problems, []);
  await page.close();
});

check('marks the place where prompts differ, and shows failures', async () => {
  await complete('Zelda had a plan.\nIt is 11:29 now.\nShe ran.');
  await complete('Zelda had a plan.\nIt is 11:30 now.\nShe ran.');
  await fetch(`${story.url}/v1/completions`, {method: 'POST', body: '{"prompt": 5}'});
  const {page, problems} = await open();
  const rows = page.locator('#ended tbody tr');
  const differs = rows.filter({hasText: 'differs at: It is 11:30 now.'}).first();
  await differs.waitFor({timeout: patience});
  assert.match(await differs.locator('mark').innerText(), /^.?30?$/);
  const failure = rows.filter({hasText: 'failed 400'}).first();
  assert.match(await failure.innerText(), /prompt/);
  assert.deepEqual(problems, []);
  await page.close();
});
