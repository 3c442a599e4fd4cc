// A list of tunings, each a link to its own page.

import { formatTime } from "../../components/format.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

/** @param {{tunings: import("./calls.js").Tuning[]}} props */
export function TuningList({ tunings }) {
  return html`
    <ul class="jobs-list" aria-label=${t("tune.list")}>
      ${tunings.map(
        (tuning) => html`
          <li key=${tuning.id} class="card" aria-label=${nameOf(tuning)}>
            <div class="card-head">
              <h2><a href=${`#/tune/${tuning.id}`}>${nameOf(tuning)}</a></h2>
              <${TuningStatus} status=${tuning.status} />
            </div>
            <ul class="facts">
              <li>${tuning.model}</li>
              <li>${formatTime(tuning.created_at)}</li>
              ${tuning.error && html`<li>${tuning.error.message.split("\n", 1)[0]}</li>`}
            </ul>
          </li>
        `,
      )}
    </ul>
  `;
}

/** @param {import("./calls.js").Tuning} tuning */
export const nameOf = ({ fine_tuned_model: name, id }) => name ?? id;

/** @param {{status: import("./calls.js").TuningStatus}} props */
export function TuningStatus({ status }) {
  return html`<span class=${`jobs-status is-${status}`}>${t(`tune.status.${status}`)}</span>`;
}
