// The values that the page keeps: the texts, the query, and the name of this browser's collection.

import { keepDraft } from "../../drafts.js";
import { createStore } from "../../store.js";

/** @typedef {{texts: string, query: string, collection: string}} Draft One text a line. */

/** @type {Draft} */
const EMPTY = { texts: "", query: "", collection: `page-${Math.random().toString(36).slice(2, 12)}` };

export const draft = createStore(EMPTY);

/** Settles when the kept values have been read. */
export const restored = keepDraft("search", draft);

/** @param {Partial<Draft>} change */
export const change = (change) => draft.set({ ...draft.get(), ...change });

/** @param {string} texts @returns {string[]} The lines that are not empty, each once. */
export const linesOf = (texts) => [...new Set(texts.split(/\r?\n/).map((line) => line.trim()))].filter((line) => line !== "");
