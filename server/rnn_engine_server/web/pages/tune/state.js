// The values that the page keeps: the examples, and the settings of the next tuning.

import { keepDraft } from "../../drafts.js";
import { createStore } from "../../store.js";

/** @typedef {"pairs" | "pissa" | "state" | "vectors"} Way How a LoRA is trained. */

/**
 * @typedef {{examples: string, suffix: string, epochs: string, batch: string, rate: string, rank?: string,
 *   way?: Way}} Draft
 * Empty numbers: auto; without a rank, a state is tuned.
 */

/** @type {Draft} */
const EMPTY = { examples: "", suffix: "", epochs: "", batch: "", rate: "" };

export const draft = createStore(EMPTY);

/** Settles when the kept values have been read. */
export const restored = keepDraft("tune", draft);

/** @param {Partial<Draft>} change */
export const change = (change) => draft.set({ ...draft.get(), ...change });
