// The settings of a conversation: system text, sampler, penalties, tools.

import { TextField } from "../../components/fields.js";
import { SamplingForm } from "../../components/sampling_form.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { toolsError } from "./request.js";

/** @typedef {import("./tree.js").Settings} Settings */
/** @typedef {import("../../components/sampling.js").Sampling} Sampling */

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
  /** @param {boolean} thinks */
  const setThinking = (thinks) => {
    const { enable_thinking: _, ...others } = sampling;
    set({ sampling: thinks ? { ...others, enable_thinking: true } : others });
  };
  const error = toolsError(tools);
  return html`
    <div class="stack settings">
      <${TextField} label=${t("settings.system")} value=${system} onChange=${(/** @type {string} */ text) => set({ system: text })} />
      <${SamplingForm} sampling=${sampling} onChange=${(/** @type {Sampling} */ chosen) => set({ sampling: chosen })}>
        <label class="row">
          <input
            type="checkbox"
            checked=${sampling.enable_thinking === true}
            onChange=${(/** @type {any} */ event) => setThinking(event.target.checked)}
          />
          ${t("settings.thinking")}
        </label>
      <//>
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
