// What somebody is working on, kept in the browser, so that nothing is lost when the page is loaded again.

import { readRecords, writeRecord } from "./storage.js";

const TABLE = "drafts";
const WAIT_MS = 300;

/** @type {Map<string, import("./store.js").Store<any>>} What has changed and is not written yet. */
const changed = new Map();
/** @type {number | undefined} */
let timer;

/**
 * Put what was kept under `id` into a store, and keep from then on what is in it.
 * @param {string} id
 * @param {import("./store.js").Store<any>} store
 */
export async function keepDraft(id, store) {
  const kept = await readDraft(id);
  if (kept !== undefined) store.set(kept);
  store.subscribe(() => {
    changed.set(id, store);
    timer ??= window.setTimeout(writeNow, WAIT_MS);
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

function writeNow() {
  clearTimeout(timer);
  timer = undefined;
  for (const [id, store] of changed) {
    writeRecord(TABLE, { id, value: store.get() }).catch(() => {
      // the browser keeps nothing: the draft lasts as long as the page
    });
  }
  changed.clear();
}

addEventListener("pagehide", writeNow);
document.addEventListener("visibilitychange", () => document.hidden && writeNow());
