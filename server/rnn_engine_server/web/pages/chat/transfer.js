// Conversations as files: JSON, which can be read in again, and markdown for people.

import { cleanConversation } from "./clean.js";
import { pathOf, titleOf } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const FORMAT = "rnn-engine conversations";

/** @param {Conversation[]} conversations */
export function toJson(conversations) {
  return `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2)}\n`;
}

/**
 * Return the conversations of a file, each with a new id. Throws an Error if it is no such file.
 * @param {string} text
 * @param {string} message The error's message.
 * @returns {Conversation[]}
 */
export function fromJson(text, message) {
  try {
    const { format, conversations } = JSON.parse(text);
    if (format === FORMAT) return conversations.map(cleanConversation);
  } catch {
    // no JSON, or other JSON
  }
  throw new Error(message);
}

/**
 * Return the messages of a conversation that are shown, as markdown.
 * @param {Conversation} conversation
 * @param {Record<"user" | "assistant" | "tool", string>} names
 */
export function toMarkdown(conversation, names) {
  const { system } = conversation.settings;
  const parts = [`# ${titleOf(conversation)}`, ...(system ? [`> ${system.replaceAll("\n", "\n> ")}`] : [])];
  for (const { role, content, calls = [] } of pathOf(conversation)) {
    parts.push(`## ${names[role]}`, content);
    for (const call of calls) parts.push(`\`\`\`json\n${JSON.stringify({ name: call.name, arguments: call.arguments })}\n\`\`\``);
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

/** Return a title as the name of a file. @param {string} title */
export const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation";
