// The page that the address names: #/chat, or #/chat/ID for something in it.

import { createStore } from "./store.js";

/** @typedef {{page: string, rest: string}} Place */

/** @returns {Place} */
function read() {
  const [, page = "", ...rest] = location.hash.split("/");
  return { page, rest: decodeURIComponent(rest.join("/")) };
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
