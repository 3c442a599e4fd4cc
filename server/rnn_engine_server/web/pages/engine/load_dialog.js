// The settings for loading a model: weight format, LoRA, device, slots, beside the others or in place of the default.

import { post } from "../../api.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Select } from "../../components/fields.js";
import { notify, notifyError } from "../../components/notices.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";

const WEIGHTS = ["f16", "f32", "int8", "int4", "q4_k_m", "nf4", "sf4"];

/**
 * @param {{
 *   file: import("./models.js").ModelFile, devices: string[], onClose: () => void, onLoaded: () => void,
 * }} props
 */
export function LoadDialog({ file, devices, onClose, onLoaded }) {
  const [fields, setFields] = useState({ name: "", weights: "", lora: "", alpha: "", slots: "", device: "", add: true });
  /** @param {Partial<typeof fields>} change */
  const set = (change) => setFields({ ...fields, ...change });
  /** @param {Event} event */
  const load = async (event) => {
    event.preventDefault();
    onClose();
    try {
      const model = await post("/admin/models/load", bodyOf(file.path, fields));
      notify(t("engine.was_loaded", { model: model.id }));
    } catch (error) {
      notifyError(error);
    } finally {
      onLoaded();
    }
  };
  /** @param {"name" | "weights" | "lora" | "alpha" | "slots"} field @param {string} label @param {Record<string, any>} [attributes] */
  const input = (field, label, attributes = {}) => html`
    <label class="field grow">
      <span>${label}</span>
      <input value=${fields[field]} onInput=${(/** @type {any} */ event) => set({ [field]: event.target.value })} ...${attributes} />
    </label>
  `;
  return html`
    <${Dialog} title=${t("engine.load_of", { name: file.name })} onClose=${onClose}>
      <form class="stack" onSubmit=${load}>
        ${input("name", t("engine.name"), { placeholder: file.name.replace(/\.[^.]+$/, "") })}
        <div class="row is-top">
          ${input("weights", t("engine.weights"), { list: "weight-formats", placeholder: t("engine.as_server") })}
          <datalist id="weight-formats">${WEIGHTS.map((format) => html`<option key=${format} value=${format} />`)}</datalist>
          ${input("slots", t("engine.slots"), { type: "number", min: 1, placeholder: t("engine.as_server") })}
        </div>
        <div class="row is-top">
          ${input("lora", t("engine.lora_file"))}
          ${input("alpha", t("engine.lora_alpha"), { type: "number", step: "any" })}
        </div>
        <${Select}
          label=${t("engine.device")}
          value=${fields.device}
          options=${[
            { value: "", label: t("engine.as_server") },
            { value: "Auto", label: t("engine.device_auto") },
            ...devices.map((device, index) => ({ value: String(index), label: device })),
          ]}
          onChange=${(/** @type {string} */ device) => set({ device })}
        />
        <label class="check">
          <input
            type="checkbox"
            checked=${fields.add}
            onChange=${(/** @type {any} */ event) => set({ add: event.target.checked })}
          />
          ${t("engine.beside")}
        </label>
        <div class="row is-end"><${Button} kind="main" type="submit">${t("engine.load_model")}<//></div>
      </form>
    <//>
  `;
}

/**
 * @param {string} path
 * @param {{name: string, weights: string, lora: string, alpha: string, slots: string, device: string, add: boolean}} fields
 */
function bodyOf(path, { name, weights, lora, alpha, slots, device, add }) {
  return {
    model_path: path,
    name: name || null,
    weights: weights || null,
    lora: lora === "" ? [] : [{ path: lora, alpha: alpha === "" ? null : Number(alpha) }],
    max_batch: slots === "" ? null : Number(slots),
    adapter: device === "" || device === "Auto" ? device || null : { Manual: Number(device) },
    add,
  };
}
