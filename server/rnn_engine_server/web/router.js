// The page that the address names: #/chat, or #/chat/ID for something in it.

import { createStore } from "./store.js";

/** @typedef {{page: string, rest: string}} Place */

/** @returns {Place} */
function read() {
  const [, page = "", ...rest] = location.hash.split("/");
  return { page: decoded(page), rest: decoded(rest.join("/")) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a percent sign that stands for itself
  }
}

/** Where the person is. */
export const place = createStore(read());

addEventListener("hashchange", () => place.set(read()));

/**
 * Go to a page, or to something in it.
 * @param {string} page
 * @param {string} [rest]
 */
export function go(page, rest = "") {
  location.hash = `/${page}${rest && `/${encodeURIComponent(rest)}`}`;
}
