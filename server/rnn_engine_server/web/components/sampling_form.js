// How tokens are drawn: a preset, the samplers, the seed.

import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";
import { NumberField } from "./fields.js";
import { PresetChoice } from "./presets.js";
import { MAIN_FIELDS, MORE_FIELDS } from "./sampling.js";

/** @typedef {import("./sampling.js").Sampling} Sampling */

/**
 * @param {{sampling: Sampling, onChange: (sampling: Sampling) => void, children?: any}} props `sampling` holds what is
 *   not the server's default. Children stand between the main fields and the rest.
 */
export function SamplingForm({ sampling, onChange, children }) {
  /** @param {string} name @param {number | undefined} value */
  const setField = (name, value) => {
    const { [name]: _, ...others } = sampling;
    onChange(value === undefined ? others : { ...others, [name]: value });
  };
  /** @param {import("./sampling.js").SamplingField[]} fields */
  const numbers = (fields) =>
    fields.map(
      (field) => html`<${SamplingNumber} key=${field.name} field=${field} sampling=${sampling} setField=${setField} />`,
    );
  return html`
    <${PresetChoice} sampling=${sampling} onChange=${onChange} />
    ${numbers(MAIN_FIELDS)}
    <${Seed} seed=${sampling.seed} onChange=${(/** @type {number | undefined} */ seed) => setField("seed", seed)} />
    ${children}
    <details>
      <summary>${t("settings.more")}</summary>
      <div class="stack">${numbers(MORE_FIELDS)}</div>
    </details>
  `;
}

/**
 * @param {{
 *   field: import("./sampling.js").SamplingField, sampling: Sampling,
 *   setField: (name: string, value: number | undefined) => void,
 * }} props
 */
function SamplingNumber({ field, sampling, setField }) {
  const { name, fallback, min, max, step } = field;
  return html`
    <${NumberField}
      label=${t(/** @type {import("../strings/index.js").StringKey} */ (`sampling.${name}`))}
      hint=${name}
      value=${/** @type {number} */ (sampling[name] ?? fallback)}
      min=${min}
      max=${max}
      step=${step}
      onChange=${(/** @type {number} */ value) => setField(name, value === fallback ? undefined : value)}
    />
  `;
}

/** @param {{seed: number | boolean | undefined, onChange: (seed: number | undefined) => void}} props */
function Seed({ seed, onChange }) {
  /** @param {any} event */
  const change = (event) => onChange(Number.isNaN(event.target.valueAsNumber) ? undefined : event.target.valueAsNumber);
  return html`
    <label class="field">
      <span>${t("settings.seed")}</span>
      <input type="number" step="1" placeholder=${t("settings.seed_random")} value=${seed ?? ""} onInput=${change} />
    </label>
  `;
}
