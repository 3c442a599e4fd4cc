// Scores the questions of a table, a few at a time, and counts those that are answered right.

import { bestOf, scoreChoices } from "./scoring.js";

/** @typedef {import("./items.js").Item} Item */
/** @typedef {{chosen: number, probability: number, right: boolean}} Outcome */

const TOGETHER = 4;

/**
 * Score the items that have no outcome yet, and report each. Throws if a call fails; the others' outcomes stay.
 * @param {Item[]} items
 * @param {(Outcome | undefined)[]} outcomes In the order of the items; is filled.
 * @param {import("./scoring.js").Settings} settings
 * @param {AbortSignal} signal
 * @param {() => void} tell Called after each outcome.
 */
export async function runItems(items, outcomes, settings, signal, tell) {
  const failing = new AbortController();
  const either = AbortSignal.any([signal, failing.signal]);
  let next = 0;
  const work = async () => {
    for (let place = next++; place < items.length; place = next++) {
      if (outcomes[place] !== undefined) continue;
      either.throwIfAborted();
      outcomes[place] = await outcomeOf(items[place], settings, either);
      tell();
    }
  };
  try {
    await Promise.all(Array.from({ length: TOGETHER }, work));
  } catch (error) {
    failing.abort();
    throw error;
  }
}

/** @param {Item} item @param {import("./scoring.js").Settings} settings @param {AbortSignal} signal @returns {Promise<Outcome>} */
async function outcomeOf({ question, choices, answer }, settings, signal) {
  const { scores } = await scoreChoices(question, choices, settings, signal);
  const chosen = bestOf(scores, settings.figure);
  return { chosen, probability: scores[chosen].probability, right: chosen === answer };
}

/**
 * Return the number of outcomes, the share of right ones, and the share that guessing would have.
 * The share has a standard error, which is null if all outcomes are the same.
 * @param {Item[]} items
 * @param {(Outcome | undefined)[]} outcomes
 */
export function accuracyOf(items, outcomes) {
  const done = outcomes.filter((outcome) => outcome !== undefined);
  const right = done.filter((outcome) => outcome.right).length;
  const share = done.length === 0 ? 0 : right / done.length;
  const error = right === 0 || right === done.length ? null : Math.sqrt((share * (1 - share)) / (done.length - 1));
  const guessed = items.length === 0 ? 0 : items.reduce((sum, { choices }) => sum + 1 / choices.length, 0) / items.length;
  return { done: done.length, right, share, error, guessed };
}
