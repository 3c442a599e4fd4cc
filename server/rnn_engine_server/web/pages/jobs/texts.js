// What a request of a batch asks and what its answer says, as texts.

import { formatNumber, t } from "../../strings/index.js";

/**
 * Return what the body of a request asks: its last message, its prompt, its inputs or its query.
 * @param {Record<string, any>} body
 * @returns {string}
 */
export function questionText(body) {
  const asked = body.messages?.at(-1)?.content ?? body.prompt ?? body.query ?? body.input ?? "";
  return textOf(asked);
}

/** @param {any} value A text, or texts and parts of messages in lists. @returns {string} */
function textOf(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(textOf).filter(Boolean).join("\n");
  if (value !== null && typeof value === "object") return textOf(value.text ?? value.content ?? "");
  return "";
}

/**
 * Return what a line of a file of results says: the answer's text, or why there is none.
 * @param {string} endpoint
 * @param {{response: {status_code: number, body: any} | null, error: {message: string} | null}} line
 * @returns {string}
 */
export function answerText(endpoint, { response, error }) {
  if (response === null) return error?.message ?? "";
  const { status_code: status, body } = response;
  if (status !== 200) return body.error?.message ?? t("jobs.answer.status", { status });
  return ANSWERS[endpoint]?.(body) ?? JSON.stringify(body);
}

/** @type {Record<string, (body: any) => string>} */
const ANSWERS = {
  "/v1/chat/completions": (body) => eachChoice(body, (choice) => choice.message.content ?? JSON.stringify(choice.message.tool_calls)),
  "/v1/completions": (body) => eachChoice(body, (choice) => choice.text),
  "/v1/responses": (body) => textOf(body.output),
  "/v1/embeddings": (body) =>
    t("jobs.answer.vectors", { count: formatNumber(body.data.length), size: formatNumber(body.data[0].embedding.length) }),
};

/** @param {{choices: any[]}} body @param {(choice: any) => string} text */
const eachChoice = ({ choices }, text) => choices.map(text).join("\n");
