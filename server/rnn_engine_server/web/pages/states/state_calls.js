// Calls about states under names.

import { get } from "../../api.js";
import { modelName } from "../../server.js";
import { t } from "../../strings/index.js";

/**
 * @typedef {object} NamedState A state under a name, as /v1/states tells it.
 * @property {string} id
 * @property {string} name
 * @property {string} form
 * @property {string} source
 * @property {number} created
 * @property {string} digest
 * @property {number | null} num_tokens
 * @property {number} bytes
 * @property {string | null} owner
 * @property {boolean} persistent
 * @property {boolean} read_only
 * @property {number | null} expires_in
 */

/** Return the path of all states, with the model in its query. */
export const statesPath = () => `/v1/states?model=${encodeURIComponent(modelName())}`;

/**
 * Return the path of a state, or of something below it, with the model in its query.
 * @param {string} name
 * @param {string} [below]
 * @param {Record<string, string>} [query]
 */
export function statePath(name, below = "", query = {}) {
  const end = below && `/${below}`;
  return `/v1/states/${encodeURIComponent(name)}${end}?${new URLSearchParams({ model: modelName(), ...query })}`;
}

/**
 * Return all states under names, with the bytes that they take and the bytes that they may take.
 * @param {AbortSignal} [signal]
 * @returns {Promise<{data: NamedState[], default: string | null, bytes: number, capacity: number}>}
 */
export const listStates = (signal) => get(statesPath(), { signal });

/**
 * Return the name of the state with which a tree of the cache begins. Throws an Error if it has no name any more.
 * @param {string} root
 * @returns {Promise<string>}
 */
export async function startOf(root) {
  const digest = root.split("/")[0];
  if (digest === "none") return "none";
  const found = (await listStates()).data.find((state) => state.digest === digest);
  if (found === undefined) throw new Error(t("states.start_gone"));
  return found.name;
}
