// Amounts side by side as bars, each with its value as text.

import { html } from "../../vendor/preact.js";

/** @typedef {{name: string, value: number, most?: number | null, text: string, kind?: string}} Bar */

/** @param {{bars: Bar[]}} props A bar is as long as its value's share of `most`, else of the greatest value. */
export function Bars({ bars }) {
  const greatest = Math.max(...bars.map(({ value }) => value), 1e-9);
  return html`
    <dl class="bars">
      ${bars.map(
        ({ name, value, most, text, kind = "" }) => html`
          <div key=${name}>
            <dt>${name}</dt>
            <dd>
              <span class=${`amount ${kind}`} aria-hidden="true"><i style=${{ width: `${100 * Math.min(value / (most ?? greatest), 1)}%` }}></i></span>
              <span class="number">${text}</span>
            </dd>
          </div>
        `,
      )}
    </dl>
  `;
}
