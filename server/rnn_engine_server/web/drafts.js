// Drafts that the browser keeps, so that no work is lost when the page is loaded again.

import { readRecords, writeRecord } from "./storage.js";

const TABLE = "drafts";
const WAIT_MS = 300;
const SLOW_PART = 5; // writing takes at most this fraction of the time: 1 / SLOW_PART

/** @type {Map<string, import("./store.js").Store<any>>} What has changed and is not written yet. */
const changed = new Map();
/** @type {number | undefined} */
let timer;
let waitMs = WAIT_MS;

/**
 * Put the draft kept under `id` into a store, and from then on keep the store's value under `id`.
 * @param {string} id
 * @param {import("./store.js").Store<any>} store
 */
export async function keepDraft(id, store) {
  const kept = await readDraft(id);
  if (kept !== undefined) store.set(kept);
  store.subscribe(() => {
    changed.set(id, store);
    timer ??= window.setTimeout(writeNow, waitMs);
  });
}

/** @param {string} id */
async function readDraft(id) {
  try {
    return (await readRecords(TABLE)).find((record) => record.id === id)?.value;
  } catch {
    return undefined;
  }
}

async function writeNow() {
  clearTimeout(timer);
  timer = undefined;
  const begun = performance.now();
  const records = [...changed].map(([id, store]) => ({ id, value: store.get() }));
  changed.clear();
  await Promise.allSettled(records.map((record) => writeRecord(TABLE, record))); // fails if the browser keeps nothing
  waitMs = Math.max(WAIT_MS, SLOW_PART * (performance.now() - begun));
}

addEventListener("pagehide", writeNow);
document.addEventListener("visibilitychange", () => document.hidden && writeNow());
