// The values that the page keeps: the question, the choices, the table, and the settings for comparing choices.

import { keepDraft } from "../../drafts.js";
import { createStore } from "../../store.js";
import { DEFAULTS } from "./scoring.js";

/**
 * @typedef {object} Draft
 * @property {string} question
 * @property {string[]} choices
 * @property {string} table
 * @property {import("./scoring.js").Settings} settings
 */

/** @type {Draft} */
const EMPTY = { question: "", choices: ["", ""], table: "", settings: DEFAULTS };

export const draft = createStore(EMPTY);

/** Settles when the kept values have been read. */
export const restored = keepDraft("score", draft);

/** @param {Partial<Draft>} change */
export const change = (change) => draft.set({ ...draft.get(), ...change });
