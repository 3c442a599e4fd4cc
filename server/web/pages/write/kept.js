// Keeps the texts in the browser, so that none is lost when the page is loaded again.

import { readRecords, writeRecord } from "../../storage.js";

const TABLE = "drafts";
const WAIT_MS = 300;

/** @typedef {import("./branches.js").Branches} Branches */

/** @type {Branches | null} */
let waiting = null;
/** @type {number | undefined} */
let timer;

/**
 * Keep the texts a moment later, or when the page is left.
 * @param {Branches} branches
 */
export function keep(branches) {
  waiting = branches;
  timer ??= window.setTimeout(writeNow, WAIT_MS);
}

function writeNow() {
  clearTimeout(timer);
  timer = undefined;
  if (waiting === null) return;
  const branches = waiting;
  waiting = null;
  writeRecord(TABLE, { id: "write", branches }).catch(() => {
    // the browser keeps nothing: the texts last as long as the page
  });
}

addEventListener("pagehide", writeNow);
document.addEventListener("visibilitychange", () => document.hidden && writeNow());

/**
 * Return the texts that were kept; null where there are none.
 * @returns {Promise<Branches | null>}
 */
export async function readKept() {
  try {
    const records = await readRecords(TABLE);
    return records.find(({ id }) => id === "write")?.branches ?? null;
  } catch {
    return null;
  }
}
