// Small drawings in the colour of the text, on a grid of 24 units.

import { html } from "../vendor/preact.js";

const PATHS = {
  chat: "M4 5h16v11H9l-5 4z",
  write: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  score: "M5 20V10M12 20V4M19 20v-7",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L21 21",
  jobs: "M4 7h16v12H4zM9 7V4h6v3M4 12h16M12 11v3",
  tune: "M4 19c3 0 3-13 8-13M12 6c2 0 3 6 8 6M4 5v14h16",
  states: "M6 4v9a4 4 0 0 0 4 4h8M6 8h12M16 5l3 3-3 3M16 14l3 3-3 3",
  engine: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  retry: "M5 12a7 7 0 1 0 2-5M5 4v4h4",
  fork: "M7 4v16M7 12h6a4 4 0 0 0 4-4V5M14 8l3-3 3 3",
  left: "M14 6l-6 6 6 6",
  down: "M6 10l6 6 6-6",
  right: "M10 6l6 6-6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  moon: "M19 15A8 8 0 0 1 9 5a8 8 0 1 0 10 10",
  chinese: "M5 8h14v7H5zM12 4v17",
  code: "M8 7l-5 5 5 5M16 7l5 5-5 5M13.5 5l-3 14",
  contrast: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 4v16M12 8h7M12 12h8M12 16h7",
  warning: "M12 4L3 20h18zM12 10v5M12 17.5v.01",
};

/** @typedef {keyof typeof PATHS} IconName */

/** @param {{name: IconName}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}
