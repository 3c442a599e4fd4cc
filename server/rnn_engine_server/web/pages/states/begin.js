// Begin on another page with the text of a kept position.

import { go } from "../../router.js";

/** @typedef {import("./chat_text.js").ChatText} ChatText */

/**
 * Begin a conversation with these messages, and ask for the answer if they end with a question.
 * @param {ChatText} chat
 * @param {string} state The name of the initial state.
 */
export async function beginChat({ system, messages, isAsking }, state) {
  const [{ loadConversations, putConversation }, { addMessage, newConversation, newId }, { askForAnswer }] =
    await Promise.all([import("../chat/conversations.js"), import("../chat/tree.js"), import("../chat/running.js")]);
  await loadConversations();
  /** @type {string | null} */
  let parent = null;
  let conversation = newConversation({ state, system });
  for (const { role, content } of messages) {
    const id = newId();
    conversation = addMessage(conversation, { id, parent, role, content, ...(role === "assistant" && { finish: "stop" }) });
    parent = id;
  }
  putConversation(conversation);
  go("chat", conversation.id);
  if (isAsking) await askForAnswer(conversation.id, parent);
}

/**
 * Begin a text on the page Write.
 * @param {string} text
 * @param {string} state The name of the initial state.
 */
export async function beginText(text, state) {
  const [{ clear, restored, write }, { settings }] = await Promise.all([
    import("../write/session.js"),
    import("../write/settings.js"),
  ]);
  await restored;
  clear();
  write(text);
  settings.set({ ...settings.get(), state });
  go("write");
}
