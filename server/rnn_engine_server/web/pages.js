// The pages, in the order of the navigation. A page is loaded when it is first opened.

/**
 * @typedef {object} PageEntry
 * @property {string} name What the address calls it: #/name.
 * @property {import("./strings/index.js").StringKey} title
 * @property {import("./components/icons.js").IconName} icon
 * @property {() => Promise<{Page: (props: any) => any}>} load
 * @property {string[]} styles Its style files below /web/, those that pages share first.
 */

/** @type {PageEntry[]} */
export const PAGES = [
  {
    name: "chat",
    title: "nav.chat",
    icon: "chat",
    load: () => import("./pages/chat/page.js"),
    styles: ["style/chat.css"],
  },
  {
    name: "write",
    title: "nav.write",
    icon: "write",
    load: () => import("./pages/write/page.js"),
    styles: ["style/write.css"],
  },
  {
    name: "score",
    title: "nav.score",
    icon: "score",
    load: () => import("./pages/score/page.js"),
    styles: ["style/pages.css", "style/write.css", "style/bars.css", "style/score.css"],
  },
  {
    name: "search",
    title: "nav.search",
    icon: "search",
    load: () => import("./pages/search/page.js"),
    styles: ["style/pages.css", "style/bars.css", "style/search.css"],
  },
  {
    name: "jobs",
    title: "nav.jobs",
    icon: "jobs",
    load: () => import("./pages/jobs/page.js"),
    styles: ["style/pages.css", "style/jobs.css"],
  },
  {
    name: "tune",
    title: "nav.tune",
    icon: "tune",
    load: () => import("./pages/tune/page.js"),
    styles: ["style/pages.css", "style/bars.css", "style/jobs.css", "style/tune.css", "vendor/uplot.css"],
  },
  {
    name: "states",
    title: "nav.states",
    icon: "states",
    load: () => import("./pages/states/page.js"),
    styles: ["style/pages.css", "style/states.css"],
  },
  {
    name: "engine",
    title: "nav.engine",
    icon: "engine",
    load: () => import("./pages/engine/page.js"),
    styles: ["style/pages.css", "style/engine.css", "vendor/uplot.css"],
  },
];
