// The texts that have been written and not sent, by conversation; they outlive the page.

import { keepDraft } from "../../drafts.js";
import { createStore } from "../../store.js";

/** The id of a conversation, or the empty string for a new one -> the text. */
export const drafts = createStore(/** @type {Record<string, string>} */ ({}));

keepDraft("messages", drafts);

/** @param {string} id @param {string} text */
export function writeDraft(id, text) {
  const { [id]: _, ...others } = drafts.get();
  drafts.set(text ? { ...others, [id]: text } : others);
}
