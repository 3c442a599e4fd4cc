// The pages, in the order of the navigation. A page is loaded when it is first opened.

/**
 * @typedef {object} PageEntry
 * @property {string} name What the address calls it: #/name.
 * @property {import("./strings/index.js").StringKey} title
 * @property {import("./components/icons.js").IconName} icon
 * @property {() => Promise<{Page: (props: any) => any}>} load
 */

/** @type {PageEntry[]} */
export const PAGES = [
  { name: "chat", title: "nav.chat", icon: "chat", load: () => import("./pages/chat/page.js") },
  { name: "write", title: "nav.write", icon: "write", load: () => import("./pages/write/page.js") },
  { name: "score", title: "nav.score", icon: "score", load: () => import("./pages/score/page.js") },
  { name: "states", title: "nav.states", icon: "states", load: () => import("./pages/states/page.js") },
  { name: "engine", title: "nav.engine", icon: "engine", load: () => import("./pages/engine/page.js") },
];
