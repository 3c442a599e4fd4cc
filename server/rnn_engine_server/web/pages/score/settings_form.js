// The form for asking questions and comparing choices.

import { Select, TextField } from "../../components/fields.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { change, draft } from "./state.js";

const FIGURES = /** @type {const} */ (["mean", "per_byte", "total"]);

export function SettingsForm() {
  const { settings } = useStore(draft);
  /** @param {Partial<import("./scoring.js").Settings>} part */
  const set = (part) => change({ settings: { ...draft.get().settings, ...part } });
  const lacks = !settings.template.includes("{question}");
  return html`
    <div class="score-settings">
      <div class="stack">
        <${Select}
          label=${t("score.figure")}
          value=${settings.figure}
          options=${FIGURES.map((figure) => ({ value: figure, label: t(`score.figure.${figure}`) }))}
          onChange=${(/** @type {import("./scoring.js").Figure} */ figure) => set({ figure })}
        />
        <${Check}
          label=${t("score.calibrate")}
          hint=${t("score.calibrate.hint")}
          checked=${settings.calibrate}
          onChange=${(/** @type {boolean} */ calibrate) => set({ calibrate })}
        />
        <${Check}
          label=${t("score.space")}
          hint=${t("score.space.hint")}
          checked=${settings.space}
          onChange=${(/** @type {boolean} */ space) => set({ space })}
        />
      </div>
      <${TextField}
        label=${t("score.template")}
        value=${settings.template}
        rows=${3}
        error=${lacks ? t("score.template.lacks") : undefined}
        onChange=${(/** @type {string} */ template) => set({ template })}
      />
    </div>
  `;
}

/** @param {{label: string, hint: string, checked: boolean, onChange: (checked: boolean) => void}} props */
function Check({ label, hint, checked, onChange }) {
  return html`
    <label class="check" title=${hint}>
      <input
        type="checkbox"
        checked=${checked}
        onChange=${(/** @type {any} */ event) => onChange(event.target.checked)}
      />
      ${label}
    </label>
  `;
}
