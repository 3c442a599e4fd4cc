// Scores the choices of a question.

import { ApiError, post } from "../../api.js";
import { modelName } from "../../server.js";

/** @typedef {"total" | "mean" | "per_byte"} Figure */
/** @typedef {{id: number, token: string, logprob: number, alone?: number}} ScoredToken */

/**
 * @typedef {object} Score
 * @property {number} index The choice's place in the question.
 * @property {number} total
 * @property {number} mean
 * @property {number | null} per_byte
 * @property {number | null} perplexity
 * @property {number} probability
 * @property {ScoredToken[]} tokens
 */

/**
 * The settings for asking questions and comparing choices.
 * @typedef {object} Settings
 * @property {string} template Holds {question}.
 * @property {boolean} space Whether a choice begins with a space.
 * @property {boolean} calibrate
 * @property {Figure} figure
 */

/** @type {Settings} */
export const DEFAULTS = { template: "User: {question}\n\nAssistant:", space: true, calibrate: false, figure: "mean" };

const TRIES = 6; // of a call while the server is full
const WAIT_MS = 400;

/**
 * Return the scores of the choices, in their order.
 * @param {string} question
 * @param {string[]} choices
 * @param {Settings} settings
 * @param {AbortSignal} signal
 * @returns {Promise<{scores: Score[], reused: number, promptTokens: number}>}
 */
export async function scoreChoices(question, choices, { template, space, calibrate, figure }, signal) {
  const body = {
    ...(modelName() ? { model: modelName() } : {}),
    input: template.replaceAll("{question}", () => question),
    choices: choices.map((choice) => (space && !/^\s/.test(choice) ? ` ${choice}` : choice)),
    calibrate,
    probability_of: figure,
    logprobs: true,
  };
  const { data, usage } = await patiently(() => post("/v1/choices", body, { signal }));
  const scores = [...data].sort((one, other) => one.index - other.index);
  return { scores, reused: usage.prompt_tokens_details.cached_tokens, promptTokens: usage.prompt_tokens };
}

/**
 * Call a function, and call it again a moment later if the server has no room.
 * @template T
 * @param {() => Promise<T>} call
 * @returns {Promise<T>}
 */
async function patiently(call) {
  for (let tries = 1; ; tries++) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 429 || tries === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS * tries));
    }
  }
}

/**
 * Return the place of the best score.
 * @param {Score[]} scores
 * @param {Figure} figure
 */
export function bestOf(scores, figure) {
  const values = scores.map((score) => score[figure] ?? -Infinity);
  return values.indexOf(Math.max(...values));
}
