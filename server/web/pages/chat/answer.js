// One answer of the model: what was asked for, and what has come so far.

import { stream } from "../../api.js";

/**
 * @typedef {object} Answer
 * @property {string} content
 * @property {string} reasoning
 * @property {string | null} finish Why it ended; null while it comes, and where it broke off.
 */

/**
 * Ask for an answer to `messages` and give what there is of it after each event.
 * @param {{role: string, content: string}[]} messages
 * @param {Record<string, unknown>} fields Further fields of the request.
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Answer, void, void>}
 */
export async function* streamAnswer(messages, fields, signal) {
  /** @type {Answer} */
  let answer = { content: "", reasoning: "", finish: null };
  const body = { ...fields, messages, stream: true, stream_options: { include_usage: true } };
  for await (const event of stream("/v1/chat/completions", body, { signal })) {
    answer = withEvent(answer, event);
    yield answer;
  }
}

/** @param {Answer} answer @param {any} event @returns {Answer} */
function withEvent(answer, event) {
  const [choice] = event.choices;
  if (choice === undefined) return answer;
  return {
    content: answer.content + (choice.delta.content ?? ""),
    reasoning: answer.reasoning + (choice.delta.reasoning_content ?? ""),
    finish: choice.finish_reason ?? answer.finish,
  };
}
