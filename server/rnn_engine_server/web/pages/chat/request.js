// The body of a request for an answer, from the messages before it and the settings of the conversation.

import { modelName } from "../../server.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./tree.js").Settings} Settings */

/**
 * @param {Message[]} path
 * @param {Settings} settings
 * @returns {Record<string, unknown>}
 */
export function requestBody(path, { state, system, tools, sampling }) {
  const { enable_thinking: thinks, ...numbers } = sampling;
  /** @type {Record<string, unknown>} */
  const body = { ...numbers, model: modelName(), messages: messagesOf(path, system) };
  if (state) body.state = state;
  if (tools.trim()) body.tools = JSON.parse(tools);
  if (thinks) body.chat_template_kwargs = { enable_thinking: true };
  if (path.at(-1)?.role === "assistant") body.continue_final_message = true;
  return body;
}

/** @param {Message[]} path @param {string} system */
function messagesOf(path, system) {
  const told = path.filter(({ role, content, calls }) => role !== "assistant" || content || calls?.length);
  return [...(system.trim() ? [{ role: "system", content: system }] : []), ...told.map(messageOf)];
}

/** @param {Message} message */
function messageOf({ role, content, calls, callId }) {
  if (role === "tool") return { role, content, tool_call_id: callId };
  if (!calls?.length) return { role, content };
  const told = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return { role, content: content || null, tool_calls: told };
}

/**
 * Return the error in a text of tools; empty if there is none.
 * @param {string} text
 */
export function toolsError(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "[…]";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}
