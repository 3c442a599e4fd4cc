// How tokens are drawn, and from which state a text begins.

import { Select } from "../../components/fields.js";
import { SamplingForm } from "../../components/sampling_form.js";
import { stateNames } from "../../server.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { settings } from "./settings.js";

export function SamplingSection() {
  const { sampling, state } = useStore(settings);
  const names = [...new Set([...useStore(stateNames), ...(state && state !== "none" ? [state] : [])])];
  /** @param {Partial<import("./settings.js").Settings>} part */
  const set = (part) => settings.set({ ...settings.get(), ...part });
  return html`
    <div class="stack">
      <${Select}
        label=${t("settings.state")}
        value=${state}
        options=${[
          { value: "", label: t("settings.state_default") },
          { value: "none", label: t("write.state.none") },
          ...names.map((name) => ({ value: name, label: name })),
        ]}
        onChange=${(/** @type {string} */ chosen) => set({ state: chosen })}
      />
      <${SamplingForm}
        sampling=${sampling}
        onChange=${(/** @type {import("../../components/sampling.js").Sampling} */ chosen) => set({ sampling: chosen })}
      />
    </div>
  `;
}
