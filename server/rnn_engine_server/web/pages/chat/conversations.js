// The conversations of this browser: those that have messages are kept, and found again after a reload.

import { notifyError } from "../../components/notices.js";
import { readRecords, readSetting, removeRecord, writeRecord, writeSetting } from "../../storage.js";
import { createStore } from "../../store.js";
import { mergeMessages } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const TABLE = "conversations";
const WRITE_MS = 500; // the longest time for which a change is kept in memory alone
const UNSAVED = "unsaved-conversations"; // the conversations that the page had not written when it was closed
const DELETED = "deleted-conversations"; // the ids of those that the page may not have removed when it was closed

/** All conversations by their ids. */
export const conversations = createStore(/** @type {Map<string, Conversation>} */ (new Map()));

/** True when the conversations of earlier visits have been read. */
export const loaded = createStore(false);

/** @type {Map<string, ReturnType<typeof setTimeout>>} */
const waiting = new Map();

/** @type {Map<string, Conversation>} What the browser is writing: a page that is closed may leave it unwritten. */
const writing = new Map();

/** @type {Set<string>} What the browser is removing, or had not removed when the page was closed. */
const deleted = new Set(readSetting(DELETED, []));

/** Read the conversations of earlier visits; does nothing a second time. */
export async function loadConversations() {
  if (loaded.get()) return;
  try {
    await Promise.all([...deleted].map(remove));
    const kept = (await readRecords(TABLE)).map((record) => /** @type {[string, Conversation]} */ ([record.id, record]));
    conversations.set(new Map([...kept, ...conversations.get()]));
    for (const conversation of readSetting(UNSAVED, /** @type {Conversation[]} */ ([]))) {
      if (conversation.changed > (findConversation(conversation.id)?.changed ?? 0)) putConversation(conversation);
    }
    writeSetting(UNSAVED, undefined);
  } catch (error) {
    notifyError(error);
  } finally {
    loaded.set(true);
  }
}

/** @param {string} id */
export const findConversation = (id) => conversations.get().get(id);

/**
 * Put a conversation in place of the one with its id, and keep it.
 * @param {Conversation} conversation
 */
export function putConversation(conversation) {
  const { id } = conversation;
  const isKept = (findConversation(id)?.messages.length ?? 0) > 0;
  conversations.set(new Map(conversations.get()).set(id, conversation));
  if (conversation.messages.length === 0 || waiting.has(id)) return;
  waiting.set(id, setTimeout(() => write(id), isKept ? WRITE_MS : 0)); // another tab may open a new one at once
}

/**
 * Change a conversation that is there.
 * @param {string} id
 * @param {(conversation: Conversation) => Conversation} change
 */
export function changeConversation(id, change) {
  const conversation = findConversation(id);
  if (conversation !== undefined) putConversation(change(conversation));
}

/** @param {string} id */
export async function deleteConversation(id) {
  clearTimeout(waiting.get(id));
  waiting.delete(id);
  writing.delete(id);
  const others = new Map(conversations.get());
  others.delete(id);
  conversations.set(others);
  await remove(id);
  otherTabs.postMessage(id);
}

/**
 * Remove what is kept under an id, even if the page is closed before that has been done.
 * @param {string} id
 */
async function remove(id) {
  writeSetting(DELETED, [...deleted.add(id)]);
  await removeRecord(TABLE, id);
  deleted.delete(id);
  writeSetting(DELETED, deleted.size > 0 ? [...deleted] : undefined);
}

/** @param {string} id */
function write(id) {
  clearTimeout(waiting.get(id));
  waiting.delete(id);
  const conversation = findConversation(id);
  if (conversation === undefined) return;
  writing.set(id, conversation);
  writeRecord(TABLE, conversation)
    .then(() => otherTabs.postMessage(conversation), notifyError)
    .finally(() => writing.get(id) === conversation && writing.delete(id));
}

// A conversation that another tab has written is merged with this tab's copy, so that neither loses messages.
const otherTabs = new BroadcastChannel(TABLE);
otherTabs.onmessage = ({ data }) => {
  const all = new Map(conversations.get());
  if (typeof data === "string") all.delete(data);
  else all.set(data.id, mergeMessages(data, all.get(data.id)));
  conversations.set(all);
};

addEventListener("pagehide", () => {
  const unsaved = new Set([...waiting.keys(), ...writing.keys()]);
  if (unsaved.size > 0) writeSetting(UNSAVED, [...unsaved].map(findConversation)); // at once, if it is not too large
  [...waiting.keys()].forEach(write);
});
