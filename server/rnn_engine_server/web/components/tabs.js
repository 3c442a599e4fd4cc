// The parts of a page as links, of which one is open.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";

/** @param {{label: string, page: string, tabs: {name: string, title: string}[], current: string}} props */
export function Tabs({ label, page, tabs, current }) {
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    bar.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [current]);
  return html`
    <nav ref=${bar} class="tabs" aria-label=${label}>
      ${tabs.map(
        ({ name, title }) => html`
          <a key=${name} href=${`#/${page}/${name}`} aria-current=${name === current ? "page" : undefined}>${title}</a>
        `,
      )}
    </nav>
  `;
}
