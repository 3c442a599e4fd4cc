// The answers that are being made; they go on while another conversation or page is shown.

import { createStore } from "../../store.js";
import { streamAnswer } from "./answer.js";
import { changeConversation, findConversation } from "./conversations.js";
import { requestBody } from "./request.js";
import { addMessage, changeMessage, findMessage, newId, pathTo } from "./tree.js";

/** @typedef {import("./answer.js").Answer} Answer */

const SHOW_MS = 33; // between two changes of what is shown

/** The id of a conversation -> the controller that stops its answer. */
export const running = createStore(/** @type {Map<string, AbortController>} */ (new Map()));

/** @param {string} id Of a conversation. */
export const stopAnswer = (id) => running.get().get(id)?.abort();

/**
 * Add messages, one after the other, and ask for the answer.
 * @param {string} id Of the conversation.
 * @param {string | null} parent
 * @param {{role: "user" | "tool", content: string, callId?: string}[]} added
 */
export function sendMessages(id, parent, added) {
  for (const message of added) {
    const above = parent;
    parent = newId();
    const placed = { ...message, id: parent, parent: above };
    changeConversation(id, (conversation) => addMessage(conversation, placed));
  }
  return askForAnswer(id, parent);
}

/**
 * Ask for an answer to a message, or for another one if it has an answer.
 * @param {string} id Of the conversation.
 * @param {string | null} parent
 */
export function askForAnswer(id, parent) {
  const answer = newId();
  changeConversation(id, (conversation) =>
    addMessage(conversation, { id: answer, parent, role: "assistant", content: "", finish: null }),
  );
  return run(id, answer, parent);
}

/**
 * Let the model go on with an answer that broke off or became too long.
 * @param {string} id Of the conversation.
 * @param {string} answer
 */
export function continueAnswer(id, answer) {
  changeConversation(id, (conversation) => {
    const content = findMessage(conversation, answer)?.content.trimEnd() ?? "";
    return changeMessage(conversation, answer, { content, error: undefined, finish: null });
  });
  return run(id, answer, answer);
}

/**
 * Ask for an answer to the messages up to `last`, and append it to the message `answer`.
 * @param {string} id
 * @param {string} answer
 * @param {string | null} last
 */
async function run(id, answer, last) {
  const conversation = findConversation(id);
  if (conversation === undefined || running.get().has(id)) return;
  const { content = "", reasoning = "" } = findMessage(conversation, answer) ?? {};
  const stopping = new AbortController();
  setRunning(id, stopping);
  const show = throttled((/** @type {Partial<import("./tree.js").Message>} */ fields) =>
    changeConversation(id, (current) => changeMessage(current, answer, fields)),
  );
  try {
    const body = requestBody(pathTo(conversation, last), conversation.settings);
    for await (const part of streamAnswer(body, stopping.signal)) {
      show({ ...part, content: content + part.content, reasoning: reasoning + part.reasoning });
    }
  } catch (error) {
    show(stopping.signal.aborted ? { finish: "stopped" } : { error: errorText(error) });
  } finally {
    show({ progress: undefined });
    show.now();
    setRunning(id, null);
  }
}

/** @param {string} id @param {AbortController | null} stopping */
function setRunning(id, stopping) {
  const all = new Map(running.get());
  if (stopping === null) all.delete(id);
  else all.set(id, stopping);
  running.set(all);
}

/** @param {unknown} error */
const errorText = (error) => (error instanceof Error ? error.message : String(error));

/**
 * Return a function that gathers fields and passes them to `change` every `SHOW_MS`; `now` passes them at once.
 * @param {(fields: any) => void} change
 */
function throttled(change) {
  let gathered = {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const now = () => {
    clearTimeout(timer);
    timer = undefined;
    if (Object.keys(gathered).length > 0) change(gathered);
    gathered = {};
  };
  /** @param {object} fields */
  const show = (fields) => {
    Object.assign(gathered, fields);
    timer ??= setTimeout(now, SHOW_MS);
  };
  return Object.assign(show, { now });
}
