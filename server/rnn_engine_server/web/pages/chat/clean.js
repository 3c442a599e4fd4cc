// Conversations read from a file, reduced to the fields that this page writes. Values of a wrong type are left out.

import { MAIN_FIELDS, MORE_FIELDS } from "../../components/sampling.js";
import { newId } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */
/** @typedef {import("./tree.js").Message} Message */

const ROLES = ["user", "assistant", "tool"];
const SAMPLING = [...[...MAIN_FIELDS, ...MORE_FIELDS].map(({ name }) => name), "seed", "enable_thinking"];
const STATS = /** @type {const} */ (["firstMs", "promptTokens", "cachedTokens", "tokens", "perSecond"]);

/**
 * Return a conversation with a new id. Throws a TypeError if `value` is not a conversation.
 * @param {any} value
 * @returns {Conversation}
 */
export function cleanConversation({ title, changed, settings, messages, chosen }) {
  if (!Array.isArray(messages)) throw new TypeError("messages");
  const kept = messages.map(cleanMessage);
  checkParents(kept);
  const { state, system, tools, sampling } = settings;
  return {
    id: newId(),
    title: text(title),
    changed: Number.isFinite(changed) ? changed : Date.now(),
    settings: {
      state: text(state),
      system: text(system),
      tools: text(tools),
      sampling: entries(sampling, (name, one) => SAMPLING.includes(name) && (Number.isFinite(one) || one === true)),
    },
    messages: kept,
    chosen: entries(chosen, (_, one) => one === null || typeof one === "string"),
  };
}

/** @param {any} value @returns {Message} */
function cleanMessage({ id, parent, role, content, reasoning, calls = [], callId, finish, error, stats }) {
  if (!ROLES.includes(role)) throw new TypeError("role");
  return {
    id: text(id),
    parent: parent === null ? null : text(parent),
    role,
    content: text(content),
    ...(typeof reasoning === "string" && { reasoning }),
    ...(calls.length > 0 && { calls: calls.map(cleanCall) }),
    ...(typeof callId === "string" && { callId }),
    ...(role === "assistant" && { finish: typeof finish === "string" ? finish : null }),
    ...(typeof error === "string" && { error }),
    ...(stats && STATS.every((name) => Number.isFinite(stats[name])) && { stats: cleanStats(stats) }),
  };
}

/** @param {any} call */
const cleanCall = ({ id, name, arguments: given }) => ({ id: text(id), name: text(name), arguments: text(given) });

/** @param {any} stats @returns {import("./tree.js").Stats} */
function cleanStats({ firstMs, promptTokens, cachedTokens, tokens, perSecond, seed }) {
  return { firstMs, promptTokens, cachedTokens, tokens, perSecond, seed: Number.isFinite(seed) ? seed : null };
}

/** @param {Message[]} messages */
function checkParents(messages) {
  const seen = new Set(/** @type {(string | null)[]} */ ([null]));
  for (const { id, parent } of messages) {
    if (!seen.has(parent) || seen.has(id)) throw new TypeError("parent");
    seen.add(id);
  }
}

/** @param {any} value @returns {string} */
function text(value) {
  if (typeof value !== "string") throw new TypeError("text");
  return value;
}

/** @param {any} value @param {(name: string, one: any) => boolean} isKept */
const entries = (value, isKept) => Object.fromEntries(Object.entries(value).filter(([name, one]) => isKept(name, one)));
