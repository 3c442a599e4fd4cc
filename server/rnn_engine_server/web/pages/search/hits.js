// The texts in the order in which they answer a query, each with its place by vector alone.

import { percentOf } from "../../components/token_names.js";
import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

/** @param {{hits: import("./collection.js").Hit[]}} props */
export function Hits({ hits }) {
  const nearest = [...hits].sort((one, other) => other.similarity - one.similarity).map(({ id }) => id);
  return html`
    <ol class="bars" aria-label=${t("search.result")}>
      ${hits.map(({ id, text, similarity, relevance, score }, place) => {
        const before = nearest.indexOf(id);
        return html`
          <li key=${id} class=${place === 0 ? "is-best" : ""}>
            <div class="bar-head">
              <span class="bar-name">${text}</span>
              ${relevance !== null && before !== place && html`<${Moved} places=${before - place} />`}
              <span class="number">${relevance === null ? formatNumber(similarity, 3) : percentOf(Math.log(relevance))}</span>
            </div>
            <div class="bar-track" aria-hidden="true">
              <i style=${{ width: `${100 * Math.max(score, 0)}%` }}></i>
            </div>
            <p class="muted small">
              ${t("search.nearest", { place: formatNumber(before + 1), similarity: formatNumber(similarity, 3) })}
            </p>
          </li>
        `;
      })}
    </ol>
  `;
}

/** @param {{places: number}} props How many places a text has risen, or fallen if negative. */
function Moved({ places }) {
  const [text, arrow] = places > 0 ? [t("search.risen", { places }), "▲"] : [t("search.fallen", { places: -places }), "▼"];
  return html`<span class="badge" title=${text}><span aria-hidden="true">${arrow} ${Math.abs(places)}</span><span class="unseen">${text}</span></span>`;
}
