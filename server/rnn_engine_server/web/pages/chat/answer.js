// One answer of the model, put together from the events of its stream.

import { stream } from "../../api.js";

/** @typedef {import("./tree.js").ToolCall} ToolCall */
/** @typedef {import("./tree.js").Stats} Stats */

/**
 * @typedef {object} Answer
 * @property {string} content
 * @property {string} reasoning
 * @property {ToolCall[]} calls
 * @property {string | null} finish Why it ended; null while it comes.
 * @property {Stats} stats
 * @property {{done: number, total: number}} [progress] Tokens of the prompt, while the model reads it.
 */

/** @type {Stats} */
const NO_STATS = { firstMs: 0, promptTokens: 0, cachedTokens: 0, tokens: 0, perSecond: 0, seed: null };

/**
 * Ask for an answer, and yield the part that has come after each event.
 * @param {Record<string, unknown>} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Answer, void, void>}
 */
export async function* streamAnswer(body, signal) {
  const sent = performance.now();
  /** @type {Answer} */
  let answer = { content: "", reasoning: "", calls: [], finish: null, stats: NO_STATS };
  const whole = { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true };
  for await (const event of stream("/v1/chat/completions", whole, { signal })) {
    answer = withEvent(answer, event);
    if (answer.stats.firstMs === 0 && (answer.content || answer.reasoning || answer.calls.length > 0)) {
      answer = { ...answer, stats: { ...answer.stats, firstMs: performance.now() - sent } };
    }
    yield answer;
  }
}

/** @param {Answer} answer @param {any} event @returns {Answer} */
function withEvent(answer, event) {
  const stats = withNumbers(answer.stats, event);
  const [choice] = event.choices;
  const { processed: done, total } = event.prompt_progress ?? {};
  if (choice === undefined) return { ...answer, stats, ...(total && { progress: { done, total } }) };
  const { content, reasoning_content: reasoning, tool_calls: calls = [] } = choice.delta;
  return {
    content: answer.content + (content ?? ""),
    reasoning: answer.reasoning + (reasoning ?? ""),
    calls: calls.reduce(withCall, answer.calls),
    finish: choice.finish_reason ?? answer.finish,
    stats: choice.seed === undefined ? stats : { ...stats, seed: choice.seed },
  };
}

/** @param {Stats} stats @param {any} event @returns {Stats} */
function withNumbers(stats, { usage, timings }) {
  return {
    ...stats,
    ...(usage && {
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details.cached_tokens,
      tokens: usage.completion_tokens,
    }),
    ...(timings && { perSecond: timings.predicted_per_second }),
  };
}

/** @param {ToolCall[]} calls @param {any} delta @returns {ToolCall[]} */
function withCall(calls, { index, id, function: called }) {
  const before = calls[index] ?? { id: "", name: "", arguments: "" };
  const call = {
    id: id ?? before.id,
    name: before.name + (called?.name ?? ""),
    arguments: before.arguments + (called?.arguments ?? ""),
  };
  return Object.assign([...calls], { [index]: call });
}
