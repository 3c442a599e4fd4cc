// The collection that this browser has on the server: it is made to hold the page's texts, then it is asked.

import { get, post, remove } from "../../api.js";
import { modelName } from "../../server.js";

/** @typedef {{id: string, text: string, similarity: number, relevance: number | null, score: number}} Hit */
/** @typedef {{cached: number, run: number}} Tokens Those whose states had been kept, and those that were run. */
/** @typedef {{hits: Hit[], method: string | null, searchMs: number, rerankMs: number, tokens: Tokens}} Found */

const MOST_LISTED = 1000;

/**
 * Make the collection hold these texts and no others, and return the tokens that the model ran for new ones.
 * @param {string} name
 * @param {string[]} texts All different.
 * @param {AbortSignal} signal
 * @returns {Promise<{added: number, tokens: Tokens}>}
 */
export async function keepTexts(name, texts, signal) {
  const documents = await documentsOf(name, signal);
  const gone = documents.filter(({ text }) => !texts.includes(text)).map(({ id }) => id);
  if (gone.length > 0) await post(`${address(name)}/documents/delete`, { ids: gone }, { signal });
  const known = new Set(documents.map(({ text }) => text));
  const added = texts.filter((text) => !known.has(text));
  if (added.length === 0) return { added: 0, tokens: { cached: 0, run: 0 } };
  const { usage } = await post(`${address(name)}/documents`, { model: modelName(), documents: added }, { signal });
  const cached = usage.prompt_tokens_details.cached_tokens;
  return { added: added.length, tokens: { cached, run: usage.prompt_tokens - cached } };
}

/**
 * Return all texts of the collection, ordered by how well they answer a query.
 * @param {string} name
 * @param {string} query
 * @param {number} count How many texts there are.
 * @param {AbortSignal} signal
 * @returns {Promise<Found>}
 */
export async function ask(name, query, count, signal) {
  const body = { model: modelName(), query, top_n: count, candidates: count };
  const answer = await post(`${address(name)}/query`, body, { signal });
  return {
    hits: answer.results,
    method: answer.method,
    searchMs: answer.search_ms,
    rerankMs: answer.rerank_ms,
    tokens: { cached: answer.usage.prompt_tokens_details.cached_tokens, run: answer.tokens_run },
  };
}

/** @param {string} name */
const address = (name) => `/v1/collections/${encodeURIComponent(name)}`;

/**
 * Return the documents of the collection; make an empty one if there is none for the chosen model.
 * @param {string} name
 * @param {AbortSignal} signal
 * @returns {Promise<{id: string, text: string}[]>}
 */
async function documentsOf(name, signal) {
  const { data } = await get("/v1/collections", { signal });
  const found = data.find((/** @type {{name: string}} */ each) => each.name === name);
  if (found?.model === modelName()) {
    const documents = [];
    for (let after = "", more = true; more; after = `&after=${encodeURIComponent(documents.at(-1)?.id ?? "")}`) {
      const page = await get(`${address(name)}/documents?limit=${MOST_LISTED}${after}`, { signal });
      documents.push(...page.data);
      more = page.has_more;
    }
    return documents;
  }
  if (found) await remove(address(name), { signal }); // its vectors are those of another model
  await post("/v1/collections", { model: modelName(), name }, { signal });
  return [];
}
