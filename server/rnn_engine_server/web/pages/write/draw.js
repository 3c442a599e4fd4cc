// Draws the tokens that continue a text, and measures how quickly they come.

import { stream } from "../../api.js";
import { tokenOf } from "./cells.js";
import { extended } from "./text.js";

/** @typedef {import("./text.js").Text} Text */
/** @typedef {import("./session.js").Facts} Facts */

const STREAMED = { stream: true, return_progress: true };
const SLOW_PART = 8; // showing the text takes at most this fraction of the time: 1 / SLOW_PART

/**
 * Draw tokens until the end, and report the text and the facts as they come. Throws if the call fails, after
 * reporting what has come until then.
 * @param {Record<string, unknown>} body
 * @param {Text} text
 * @param {AbortSignal} signal
 * @param {(text: Text, facts: Facts) => void} tell
 */
export async function draw(body, text, signal, tell) {
  const begun = performance.now();
  /** @type {Facts} */
  let facts = { tokens: 0, perSecond: null, firstMs: null, promptTokens: null, reused: null, read: 0, end: "running" };
  /** @type {import("./cells.js").Token[]} */
  let waiting = [];
  let nextShown = 0;
  let timer = 0;
  const flush = () => {
    clearTimeout(timer);
    timer = 0;
    if (waiting.length > 0) text = extended(text, waiting);
    waiting = [];
    const at = performance.now();
    tell(text, facts);
    nextShown = performance.now() + SLOW_PART * (performance.now() - at);
  };
  tell(text, facts);
  try {
    for await (const event of stream("/completion", { ...body, ...STREAMED }, { signal })) {
      const drawn = (event.completion_probabilities ?? []).map(tokenOf);
      waiting.push(...drawn);
      facts = withTokens(facts, drawn.length, event, performance.now() - begun);
      if (event.stop) {
        facts = atEnd(facts, event);
        return;
      }
      const left = nextShown - performance.now();
      if (left <= 0) flush();
      else timer ||= setTimeout(flush, left); // the stream may stall before another token comes
    }
  } finally {
    if (facts.end === "running") facts = { ...facts, end: "stopped" };
    if (text.run !== null) text = { ...text, run: { ...text.run, ended: facts.end === "eos" } };
    flush();
  }
}

/** @param {Facts} facts @param {number} count @param {any} event @param {number} passedMs @returns {Facts} */
function withTokens(facts, count, event, passedMs) {
  const tokens = facts.tokens + count;
  const firstMs = facts.firstMs ?? (tokens > 0 ? passedMs : null);
  const drawingMs = firstMs === null ? 0 : passedMs - firstMs;
  const perSecond = tokens > 1 && drawingMs > 0 ? (1000 * (tokens - 1)) / drawingMs : null;
  const promptTokens = event.tokens_evaluated ?? facts.promptTokens;
  return { ...facts, tokens, firstMs, perSecond, promptTokens, read: event.prompt_progress?.processed ?? facts.read };
}

/** @param {Facts} facts @param {any} event @returns {Facts} */
function atEnd(facts, event) {
  return {
    ...facts,
    perSecond: event.timings?.predicted_per_second || facts.perSecond,
    reused: event.tokens_cached ?? null,
    end: event.stop_type,
  };
}
