// A conversation as a tree of messages. Editing, asking again or continuing from an earlier message makes a sibling.
// All functions return a new conversation and leave the given one unchanged.

/**
 * @typedef {object} ToolCall
 * @property {string} id
 * @property {string} name
 * @property {string} arguments JSON, as the model wrote it.
 */

/**
 * @typedef {object} Stats
 * @property {number} firstMs From sending to the first piece of the answer.
 * @property {number} promptTokens
 * @property {number} cachedTokens Tokens of the prompt that were known and not run.
 * @property {number} tokens Of the answer.
 * @property {number} perSecond
 * @property {number | null} seed
 */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string | null} parent
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {ToolCall[]} [calls]
 * @property {string} [callId] Of a tool's result: the call that it answers.
 * @property {string | null} [finish] Why the answer ended; null while it comes, and if it broke off.
 * @property {string} [error] Why it broke off.
 * @property {Stats} [stats]
 * @property {{done: number, total: number}} [progress] Tokens of the prompt, while the model reads it.
 */

/**
 * @typedef {object} Settings
 * @property {string} state The initial state's name; empty = the server's default.
 * @property {string} system
 * @property {string} tools JSON; empty = none.
 * @property {Record<string, number | boolean>} sampling What differs from the server's defaults, by field.
 */

/**
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title Empty = the beginning of the first message.
 * @property {number} changed Milliseconds since 1970.
 * @property {Settings} settings
 * @property {Message[]} messages In the order in which they were made, parents first.
 * @property {Record<string, string | null>} chosen Parent -> the child that is shown; null = the conversation ends there.
 */

const ROOT = ""; // the parent of first messages, in `chosen`

/** @returns {string} */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Partial<Settings>} [settings] @returns {Conversation} */
export function newConversation(settings = {}) {
  const all = { state: "", system: "", tools: "", sampling: {}, ...settings };
  return { id: newId(), title: "", changed: Date.now(), settings: all, messages: [], chosen: {} };
}

/** @param {Conversation} conversation @param {string | null} parent */
export function childrenOf(conversation, parent) {
  return conversation.messages.filter((message) => message.parent === parent);
}

/** @param {Conversation} conversation @param {Message} message */
export const siblingsOf = (conversation, message) => childrenOf(conversation, message.parent);

/** @param {Conversation} conversation @param {string | null} id */
export const findMessage = (conversation, id) => conversation.messages.find((message) => message.id === id);

/**
 * Return the messages that are shown, from the first to the last.
 * @param {Conversation} conversation
 * @returns {Message[]}
 */
export function pathOf(conversation) {
  /** @type {Map<string | null, Message[]>} */
  const children = Map.groupBy(conversation.messages, (message) => message.parent);
  const path = [];
  for (let parent = /** @type {string | null} */ (null); ; ) {
    const chosen = conversation.chosen[parent ?? ROOT];
    const all = children.get(parent) ?? [];
    const next = chosen === null ? undefined : (all.find(({ id }) => id === chosen) ?? all.at(-1));
    if (next === undefined) return path;
    path.push(next);
    parent = next.id;
  }
}

/**
 * Return the messages from the first to one of them.
 * @param {Conversation} conversation
 * @param {string | null} id
 */
export function pathTo(conversation, id) {
  const path = [];
  for (let message = findMessage(conversation, id); message; message = findMessage(conversation, message.parent)) {
    path.unshift(message);
  }
  return path;
}

/** @param {Conversation} conversation @param {Message} message The new one, which is shown. @returns {Conversation} */
export function addMessage(conversation, message) {
  const chosen = { ...conversation.chosen, [message.parent ?? ROOT]: message.id };
  return { ...conversation, changed: Date.now(), messages: [...conversation.messages, message], chosen };
}

/** @param {Conversation} conversation @param {string} id @param {Partial<Message>} fields @returns {Conversation} */
export function changeMessage(conversation, id, fields) {
  const messages = conversation.messages.map((message) => (message.id === id ? { ...message, ...fields } : message));
  return { ...conversation, changed: Date.now(), messages };
}

/** Show a message in place of its siblings. @param {Conversation} conversation @param {Message} message */
export function chooseMessage(conversation, message) {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent ?? ROOT]: message.id } };
}

/** End the conversation at a message, so that the next one is a new branch. @param {Conversation} conversation @param {string} id */
export function endAt(conversation, id) {
  return { ...conversation, chosen: { ...conversation.chosen, [id]: null } };
}

/** Show again the messages after one at which the conversation was ended. @param {Conversation} conversation @param {string} id */
export function goBack(conversation, id) {
  const { [id]: _, ...chosen } = conversation.chosen;
  return { ...conversation, chosen };
}

/**
 * Return a conversation with the messages that only another copy of it has.
 * @param {Conversation} conversation
 * @param {Conversation | undefined} other
 * @returns {Conversation}
 */
export function mergeMessages(conversation, other) {
  const known = new Set(conversation.messages.map(({ id }) => id));
  const added = (other?.messages ?? []).filter(({ id }) => !known.has(id));
  return added.length === 0 ? conversation : { ...conversation, messages: [...conversation.messages, ...added] };
}

const TITLE_LENGTH = 60;

/** @param {Conversation} conversation */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const beginning = (conversation.messages[0]?.content ?? "").trimStart().slice(0, 4 * TITLE_LENGTH);
  const text = beginning.trim().replace(/\s+/g, " ");
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH)}…` : text;
}
