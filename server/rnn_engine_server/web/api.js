// Calls of the server. A call that fails throws an ApiError; the API key is asked for once and kept.

import { readSetting, writeSetting } from "./storage.js";
import { t } from "./strings/index.js";

const KEY_SETTING = "api-key";

/** The error of a failed call, with the server's own message if it answered. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, type?: string, param?: string | null, line?: number | null, column?: number | null}}
   *   [details] Status 0: there was no answer. Line and column, from 1, say where a grammar is wrong.
   */
  constructor(message, { status = 0, type = "connection", param = null, line = null, column = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.type = type;
    this.param = param;
    this.line = line;
    this.column = column;
  }
}

/** @type {(wrong: boolean) => Promise<string | null>} */
let askForKey = async () => null;
/** @type {Promise<string | null> | undefined} */
let asking;
let declined = false; // the person was asked for the key and gave none

/**
 * Set the function that asks the person for the API key; it resolves to null if the person gives none.
 * @param {(wrong: boolean) => Promise<string | null>} ask
 */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/**
 * Send a request and return its answer. Throws an ApiError unless it is a success.
 * @param {string} method
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal, quiet?: boolean}} [options] A Blob or a form as body is sent unchanged,
 * anything else as JSON. A quiet call does not ask for the key again after the person gave none.
 * @returns {Promise<Response>}
 */
export async function send(method, path, { body, signal, quiet = false } = {}) {
  const key = readSetting(KEY_SETTING, "");
  const isForm = body instanceof FormData; // for which the browser makes the header
  /** @type {Record<string, string>} */
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body instanceof Blob) headers["Content-Type"] = "application/octet-stream";
  else if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
  const sent = body instanceof Blob || isForm ? body : JSON.stringify(body);
  const answer = await fetchOrThrow(path, { method, headers, signal, body: sent });
  if (answer.status === 401 && !(quiet && declined) && (await replaceKey(key))) return send(method, path, { body, signal });
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

/** Return the address of a path of the server, which may be reached under a path of another. @param {string} path */
export const address = (path) => new URL(`..${path}`, import.meta.url).href;

/** @param {string} path @param {RequestInit} options */
async function fetchOrThrow(path, options) {
  try {
    return await fetch(address(path), options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(t("error.unreachable"));
  }
}

/**
 * Get another key than `used`, from another call or from the person. Return true if there is one.
 * @param {string} used
 */
async function replaceKey(used) {
  if (readSetting(KEY_SETTING, "") !== used) return true;
  asking ??= askForKey(used !== "").finally(() => (asking = undefined));
  const key = await asking;
  if (key) writeSetting(KEY_SETTING, key);
  declined = !key;
  return Boolean(key);
}

/** @param {Response} answer */
async function errorOf(answer) {
  const text = await answer.text();
  try {
    return apiError(JSON.parse(text).error, answer.status);
  } catch {
    return new ApiError(text || answer.statusText, { status: answer.status, type: "http" });
  }
}

/**
 * @param {{message: string, type: string, param: string | null, line?: number, column?: number}} error
 * @param {number} status
 */
function apiError({ message, ...details }, status) {
  return new ApiError(message, { ...details, status });
}

/** @param {string} path @param {{signal?: AbortSignal, quiet?: boolean}} [options] @returns {Promise<any>} */
export const get = async (path, options) => (await send("GET", path, options)).json();

/** @param {string} path @param {unknown} body @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
export const post = async (path, body, options) => (await send("POST", path, { body, ...options })).json();

/** @param {string} path @param {unknown} body @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
export const put = async (path, body, options) => (await send("PUT", path, { body, ...options })).json();

/** @param {string} path @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
export const remove = async (path, options) => (await send("DELETE", path, options)).json();

/**
 * Yield the JSON of each server-sent event until `[DONE]`. Sends a GET if there is no body, else a POST.
 * Throws an ApiError if an event is an error, or if the stream of a POST breaks off.
 * @param {string} path
 * @param {unknown} [body]
 * @param {{signal?: AbortSignal}} [options]
 * @returns {AsyncGenerator<any, void, void>}
 */
export async function* stream(path, body, { signal } = {}) {
  const answer = await send(body === undefined ? "GET" : "POST", path, { body, signal });
  for await (const data of eventData(answer)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw apiError(event.error, answer.status);
    yield event;
  }
  if (body !== undefined) throw new ApiError(t("error.broken"));
}

/** @param {Response} answer */
async function* eventData(answer) {
  if (answer.body === null) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await readOrThrow(reader);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {ReadableStreamDefaultReader<string>} reader */
async function readOrThrow(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(t("error.broken"));
  }
}
