// The parts of a page as links, of which one is open.

import { html } from "../vendor/preact.js";

/** @param {{label: string, page: string, tabs: {name: string, title: string}[], current: string}} props */
export function Tabs({ label, page, tabs, current }) {
  return html`
    <nav class="tabs" aria-label=${label}>
      ${tabs.map(
        ({ name, title }) => html`
          <a key=${name} href=${`#/${page}/${name}`} aria-current=${name === current ? "page" : undefined}>${title}</a>
        `,
      )}
    </nav>
  `;
}
