// How tokens are drawn, and from which state a text begins.

import { get } from "../../api.js";
import { Button } from "../../components/button.js";
import { NumberField, Select, useFieldId } from "../../components/fields.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { SAMPLING, settings } from "./settings.js";

/** @type {{name: keyof typeof SAMPLING, min: number, max: number, step: number}[]} */
const FIELDS = [
  { name: "n_predict", min: 1, max: 500, step: 1 },
  { name: "temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", min: 0, max: 1, step: 0.01 },
  { name: "top_k", min: 0, max: 200, step: 1 },
  { name: "min_p", min: 0, max: 1, step: 0.01 },
  { name: "presence_penalty", min: 0, max: 2, step: 0.05 },
  { name: "frequency_penalty", min: 0, max: 2, step: 0.05 },
  { name: "repeat_penalty", min: 1, max: 2, step: 0.05 },
];

export function SamplingForm() {
  const chosen = useStore(settings);
  const id = useFieldId();
  const states = useStates();
  return html`
    <div class="stack">
      ${FIELDS.map(
        ({ name, ...range }) => html`
          <${NumberField}
            key=${name}
            label=${t(`write.${name}`)}
            value=${chosen[name]}
            ...${range}
            onChange=${(/** @type {number} */ value) => settings.set({ ...settings.get(), [name]: value })}
          />
        `,
      )}
      <div class="field">
        <label for=${id}>${t("write.seed")}</label>
        <input
          id=${id}
          type="number"
          step="1"
          min="0"
          placeholder=${t("write.random")}
          value=${chosen.seed}
          onInput=${(/** @type {any} */ event) => settings.set({ ...settings.get(), seed: event.target.value })}
        />
      </div>
      <${Select}
        label=${t("write.state")}
        value=${chosen.state}
        options=${[
          { value: "", label: t("write.state.default") },
          { value: "none", label: t("write.state.none") },
          ...states.map((name) => ({ value: name, label: name })),
        ]}
        onChange=${(/** @type {string} */ state) => settings.set({ ...settings.get(), state })}
      />
      <div class="row">
        <${Button} onClick=${() => settings.set({ ...SAMPLING, seed: "", state: "" })}>${t("write.defaults")}<//>
      </div>
    </div>
  `;
}

/** Return the names of the states that a text may begin from. */
function useStates() {
  const [names, setNames] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    get("/v1/states").then(
      ({ data }) => setNames(data.map((/** @type {{name: string}} */ state) => state.name)),
      () => setNames([]), // the choice of a state stays away
    );
  }, []);
  return names;
}
