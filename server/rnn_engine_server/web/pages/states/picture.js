// Numbers by layer and head as a picture: a row a layer, a column a head, the stronger the colour the greater.

import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";

const MOST_DIFFERENCE = 2;

/** @typedef {import("./compare.js").ComparedField} ComparedField */
/** @typedef {import("./compare.js").Measure} Measure */
/** @typedef {{field: ComparedField, column: number, x: number, width: number, top: number}} Column */

/** @param {{fields: ComparedField[], measure: Measure}} props */
export function Picture({ fields, measure }) {
  const columns = columnsOf(fields, measure);
  const layers = fields[0].differences.length;
  const { x, width: lastWidth } = columns[columns.length - 1];
  const width = x + lastWidth;
  const [at, setAt] = useState({ layer: 0, index: 0 });
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const [down, right] = step;
    setAt({ layer: clamp(at.layer + down, layers), index: clamp(at.index + right, columns.length) });
  };
  const chosen = columns[Math.min(at.index, columns.length - 1)];
  const text = cellText(chosen, at.layer, measure);
  return html`
    <figure class="picture" style=${{ maxWidth: `${120 * width}px` }}>
      <div class="picture-names" aria-hidden="true">
        ${columns
          .filter(({ column }) => column === 0)
          .map(({ field, x }) => html`<span key=${field.name} style=${{ left: `${(100 * x) / width}%` }}>${field.name}</span>`)}
      </div>
      <svg
        class="picture-cells"
        viewBox=${`0 0 ${width} ${layers}`}
        preserveAspectRatio="none"
        style=${{ height: `${Math.min(layers * 28, 560)}px` }}
        role="img"
        tabindex="0"
        aria-label=${t("states.picture", { text })}
        onKeyDown=${onKey}
      >
        ${columns.map((column, index) =>
          column.field[measure].map(
            (row, layer) => html`
              <rect
                key=${`${index}-${layer}`}
                x=${column.x}
                y=${layer}
                width=${column.width}
                height="1"
                style=${{ fill: colourOf(row[column.column] / column.top) }}
                onMouseEnter=${() => setAt({ layer, index })}
              />
            `,
          ),
        )}
        <rect class="picture-cursor" x=${chosen.x} y=${at.layer} width=${chosen.width} height="1" />
      </svg>
      <figcaption>
        <p class="picture-text number" role="status">${text}</p>
        <${Legend} most=${measure === "differences" ? formatNumber(MOST_DIFFERENCE) : t("states.greatest")} />
      </figcaption>
      <details>
        <summary>${t("states.as_table")}</summary>
        <${Table} fields=${fields} measure=${measure} />
      </details>
    </figure>
  `;
}

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** @param {number} value @param {number} count */
const clamp = (value, count) => Math.max(0, Math.min(value, count - 1));

/** @param {ComparedField[]} fields @param {Measure} measure @returns {Column[]} */
function columnsOf(fields, measure) {
  /** @type {Column[]} */
  const columns = [];
  const most = Math.max(...fields.map(({ differences }) => differences[0].length));
  let x = 0;
  for (const field of fields) {
    const top = measure === "differences" ? MOST_DIFFERENCE : Math.max(...field[measure].flat(), 1e-9);
    const count = field.differences[0].length;
    const width = count === 1 ? Math.max(1, most / 10) : 1;
    for (let column = 0; column < count; column++) columns.push({ field, column, x: x + column, width, top });
    x += count * width + most / 20;
  }
  return columns;
}

/** @param {number} share Of the greatest value. */
const colourOf = (share) => `color-mix(in oklab, var(--accent) ${Math.round(100 * Math.min(share, 1))}%, var(--surface))`;

/** @param {Column} column @param {number} layer @param {Measure} measure */
function cellText({ field, column }, layer, measure) {
  const value = formatNumber(field[measure][layer][column], 3);
  const values = { field: field.name, layer, head: column, value };
  return t(field.kind === "matrix" ? "states.cell_of_head" : "states.cell", values);
}

/** @param {{most: string}} props */
function Legend({ most }) {
  return html`
    <span class="picture-legend" aria-hidden="true"><span>0</span><i></i><span>${most}</span></span>
  `;
}

/** @param {{fields: ComparedField[], measure: Measure}} props */
function Table({ fields, measure }) {
  const heads = fields.flatMap(({ name, differences }) =>
    differences[0].map((_, head) => (differences[0].length === 1 ? name : `${name} ${head}`)),
  );
  return html`
    <div class="table-box" tabindex="0">
      <table class="list">
        <thead>
          <tr>
            <th scope="col">${t("states.layer")}</th>
            ${heads.map((head) => html`<th key=${head} scope="col" class="number">${head}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${fields[0].differences.map(
            (_, layer) => html`
              <tr key=${layer}>
                <th scope="row">${layer}</th>
                ${fields.flatMap((field) =>
                  field[measure][layer].map((value) => html`<td class="number">${formatNumber(value, 3)}</td>`),
                )}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
