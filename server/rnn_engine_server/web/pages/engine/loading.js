// The progress of models that are being loaded.

import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

/** @param {{loading: Record<string, {what: string, done: number, total: number} | null>}} props By model. */
export function Loading({ loading }) {
  return html`
    <div class="stack" aria-live="polite">
      ${Object.entries(loading).map(
        ([model, progress]) => html`
          <label key=${model} class="loading-model">
            <span>${t("engine.loading_model", { model })}</span>
            <progress max=${progress?.total ?? 1} value=${progress?.done}></progress>
            <span class="muted">
              ${progress && `${progress.what} ${formatNumber(progress.done)} / ${formatNumber(progress.total)}`}
            </span>
          </label>
        `,
      )}
    </div>
  `;
}
