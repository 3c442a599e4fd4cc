// What a conversation is made with: system text, sampler, penalties, tools.

import { NumberField, TextField } from "../../components/fields.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { PresetChoice } from "./presets.js";
import { toolsError } from "./request.js";
import { MAIN_FIELDS, MORE_FIELDS } from "./sampling.js";

/** @typedef {import("./tree.js").Settings} Settings */
/** @typedef {import("./sampling.js").Sampling} Sampling */

/**
 * @param {{
 *   conversation: import("./tree.js").Conversation,
 *   change: (change: (conversation: import("./tree.js").Conversation) => import("./tree.js").Conversation) => void,
 * }} props
 */
export function SettingsPanel({ conversation, change }) {
  const { system, tools, sampling } = conversation.settings;
  /** @param {Partial<Settings>} fields */
  const set = (fields) => change((current) => ({ ...current, settings: { ...current.settings, ...fields } }));
  /** @param {string} name @param {number | boolean | undefined} value */
  const setField = (name, value) => {
    const { [name]: _, ...others } = sampling;
    set({ sampling: value === undefined ? others : { ...others, [name]: value } });
  };
  /** @param {import("./sampling.js").SamplingField[]} fields */
  const numbers = (fields) => fields.map((field) => html`<${SamplingNumber} key=${field.name} field=${field} sampling=${sampling} setField=${setField} />`);
  const error = toolsError(tools);
  return html`
    <div class="stack settings">
      <${TextField} label=${t("settings.system")} value=${system} onChange=${(/** @type {string} */ text) => set({ system: text })} />
      <${PresetChoice} sampling=${sampling} onChange=${(/** @type {Sampling} */ chosen) => set({ sampling: chosen })} />
      ${numbers(MAIN_FIELDS)}
      <${Seed} seed=${sampling.seed} onChange=${(/** @type {number | undefined} */ seed) => setField("seed", seed)} />
      <label class="row">
        <input
          type="checkbox"
          checked=${sampling.enable_thinking === true}
          onChange=${(/** @type {any} */ event) => setField("enable_thinking", event.target.checked || undefined)}
        />
        ${t("settings.thinking")}
      </label>
      <details>
        <summary>${t("settings.more")}</summary>
        <div class="stack">${numbers(MORE_FIELDS)}</div>
      </details>
      <details open=${tools !== ""}>
        <summary>${t("settings.tools")}</summary>
        <${TextField}
          label=${t("settings.tools_label")}
          rows=${8}
          class="is-code"
          spellcheck=${false}
          value=${tools}
          error=${error && t("settings.tools_error", { error })}
          onChange=${(/** @type {string} */ text) => set({ tools: text })}
        />
      </details>
    </div>
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
      label=${t(/** @type {import("../../strings/index.js").StringKey} */ (`sampling.${name}`))}
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
