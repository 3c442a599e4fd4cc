// How long a state stays under its name: for good, or as long as its owner uses it.

import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";

/** @typedef {{persistent: boolean, owner: string, ttl: string}} RetentionChoice */

/**
 * Return the fields of a request for a choice of retention.
 * @param {RetentionChoice} choice
 */
export function retentionBody({ persistent, owner, ttl }) {
  return persistent ? { persistent } : { owner: owner || null, ttl: ttl === "" ? null : 60 * Number(ttl) };
}

/** @param {{value: RetentionChoice, onChange: (value: RetentionChoice) => void}} props */
export function Retention({ value, onChange }) {
  return html`
    <fieldset class="plain stack">
      <legend class="unseen">${t("states.kept")}</legend>
      <label class="check">
        <input
          type="checkbox"
          checked=${value.persistent}
          onChange=${(/** @type {any} */ event) => onChange({ ...value, persistent: event.target.checked })}
        />
        ${t("states.persistent")}
      </label>
      ${
        !value.persistent &&
        html`
          <div class="row">
            <label class="field grow">
              <span>${t("states.owner")}</span>
              <input
                value=${value.owner}
                placeholder=${t("states.owner_hint")}
                onInput=${(/** @type {any} */ event) => onChange({ ...value, owner: event.target.value })}
              />
            </label>
            <label class="field">
              <span>${t("states.minutes")}</span>
              <input
                type="number"
                min="1"
                placeholder="60"
                value=${value.ttl}
                onInput=${(/** @type {any} */ event) => onChange({ ...value, ttl: event.target.value })}
              />
            </label>
          </div>
        `
      }
    </fieldset>
  `;
}
