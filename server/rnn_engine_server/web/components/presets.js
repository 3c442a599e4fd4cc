// The choice of a preset, and saving one of one's own.

import { useStore } from "../store.js";
import { t } from "../strings/index.js";
import { html, useState } from "../vendor/preact.js";
import { Button } from "./button.js";
import { Select } from "./fields.js";
import { PRESETS, ownPresets, presetPart, sameSampling, withPreset } from "./sampling.js";

/** @typedef {import("./sampling.js").Sampling} Sampling */

const OWN = "own:";
const CUSTOM = "custom";

/** @param {{sampling: Sampling, onChange: (sampling: Sampling) => void}} props */
export function PresetChoice({ sampling, onChange }) {
  const own = useStore(ownPresets);
  const [name, setName] = useState(/** @type {string | null} */ (null));
  /** @type {Record<string, Sampling>} */
  const all = { ...PRESETS, ...Object.fromEntries(Object.entries(own).map(([key, preset]) => [OWN + key, preset])) };
  const current = presetPart(sampling);
  const chosen = Object.keys(all).find((key) => sameSampling(all[key], current)) ?? CUSTOM;
  const options = Object.keys(all).map((value) => ({ value, label: labelOf(value) }));
  if (chosen === CUSTOM) options.push({ value: CUSTOM, label: t("preset.custom") });
  /** @param {Event} event */
  const save = (event) => {
    event.preventDefault();
    if (name?.trim()) ownPresets.set({ ...own, [name.trim()]: current });
    setName(null);
  };
  const erase = () => {
    const { [chosen.slice(OWN.length)]: _, ...others } = own;
    ownPresets.set(others);
  };
  return html`
    <div class="preset">
      <${Select}
        label=${t("preset.label")}
        value=${chosen}
        options=${options}
        onChange=${(/** @type {string} */ key) => key !== CUSTOM && onChange(withPreset(sampling, all[key]))}
      />
      ${chosen === CUSTOM && name === null && html`<${Button} onClick=${() => setName("")}>${t("preset.save")}<//>`}
      ${chosen.startsWith(OWN) && html`<${Button} onClick=${erase}>${t("preset.delete")}<//>`}
      ${
        name !== null &&
        html`
          <form class="row" onSubmit=${save}>
            <input
              aria-label=${t("preset.name")}
              placeholder=${t("preset.name")}
              value=${name}
              onInput=${(/** @type {any} */ event) => setName(event.target.value)}
            />
            <${Button} type="submit">${t("preset.save")}<//>
          </form>
        `
      }
    </div>
  `;
}

/** @param {string} key */
function labelOf(key) {
  if (key.startsWith(OWN)) return key.slice(OWN.length);
  return t(/** @type {import("../strings/index.js").StringKey} */ (`preset.${key}`));
}
