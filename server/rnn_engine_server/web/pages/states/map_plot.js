// Points in the plane, with a colour and a form for each label. The text of the point under the pointer or key is shown.

import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";

const SIZE = 400;
const MARGIN = 16;
const COLOURS = 8;

/** @type {((x: number, y: number, size: number) => string)[]} */
const FORMS = [
  (x, y, size) => `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`,
  (x, y, size) => `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
  (x, y, size) => `M${x} ${y - 1.3 * size}l${1.3 * size} ${2.2 * size}h${-2.6 * size}z`,
  (x, y, size) => `M${x} ${y - 1.4 * size}l${1.4 * size} ${1.4 * size}l${-1.4 * size} ${1.4 * size}l${-1.4 * size} ${-1.4 * size}z`,
];

/** @typedef {import("./map.js").MapPoint} MapPoint */

/** @param {{points: MapPoint[]}} props */
export function MapPlot({ points }) {
  const [at, setAt] = useState(0);
  const labels = [...new Set(points.map(({ label }) => label))];
  const place = scaleOf(points);
  const chosen = points[Math.min(at, points.length - 1)];
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt((at + step + points.length) % points.length);
  };
  const text = chosen.label ? `${chosen.label}: ${chosen.text}` : chosen.text;
  return html`
    <figure class="map-plot">
      <svg
        viewBox=${`0 0 ${SIZE} ${SIZE}`}
        role="img"
        tabindex="0"
        aria-label=${t("states.map_picture", { n: points.length, text })}
        onKeyDown=${onKey}
      >
        ${points.map((point, index) => {
          const label = labels.indexOf(point.label);
          return html`
            <path
              key=${index}
              class=${index === at ? "is-chosen" : undefined}
              d=${FORMS[label % FORMS.length](...place(point), index === at ? 8 : 5)}
              style=${{ fill: colourOf(label) }}
              onMouseEnter=${() => setAt(index)}
            />
          `;
        })}
      </svg>
      <figcaption>
        <p class="map-text" role="status">${text}</p>
        <ul class="legend">
          ${labels.map(
            (label, index) => html`
              <li key=${label}>
                <svg class="map-mark" viewBox="0 0 20 20" aria-hidden="true">
                  <path d=${FORMS[index % FORMS.length](10, 10, 6)} style=${{ fill: colourOf(index) }} />
                </svg>
                ${label || t("states.map_no_label")}
              </li>
            `,
          )}
        </ul>
      </figcaption>
    </figure>
  `;
}

/** @param {number} label */
const colourOf = (label) => `var(--series-${(label % COLOURS) + 1})`;

/**
 * Return the function that gives a point's place on the picture.
 * @param {MapPoint[]} points
 * @returns {(point: MapPoint) => [number, number]}
 */
function scaleOf(points) {
  const [x, y] = [points.map((point) => point.x), points.map((point) => point.y)];
  const spread = Math.max(Math.max(...x) - Math.min(...x), Math.max(...y) - Math.min(...y), 1e-9);
  const [left, top] = [x, y].map((values) => (Math.min(...values) + Math.max(...values) - spread) / 2);
  /** @param {number} value @param {number} least */
  const at = (value, least) => MARGIN + ((value - least) / spread) * (SIZE - 2 * MARGIN);
  return (point) => [at(point.x, left), at(point.y, top)];
}
