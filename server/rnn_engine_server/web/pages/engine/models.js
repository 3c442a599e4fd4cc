// Models that are loaded and those in the folder of models, and the devices.

import { get, post } from "../../api.js";
import { Button } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatBytes } from "../../components/format.js";
import { notify, notifyError } from "../../components/notices.js";
import { usePolling } from "../../components/polling.js";
import { loadModels } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { LoadDialog } from "./load_dialog.js";
import { Loading } from "./loading.js";

const SECONDS = 2;
const FOLDER_SECONDS = 60;

/** @typedef {{path: string, name: string, size: number, info: Record<string, any> | null}} ModelFile */
/** @typedef {import("../../server.js").Model} Model */

export function ModelsPart() {
  const { value, error, reload } = usePolling(load, SECONDS, []);
  const hasFolder = value?.status.model_folder ?? false;
  const folder = usePolling((signal) => loadFolder(hasFolder, signal), FOLDER_SECONDS, [hasFolder]);
  const { value: devices } = usePolling(loadDevices, FOLDER_SECONDS, []);
  const [chosen, setChosen] = useState(/** @type {ModelFile | null} */ (null));
  const change = () => {
    reload();
    loadModels().catch(notifyError);
  };
  return html`
    <div>
      ${error && html`<${Failure} error=${error} />`}
      ${value && html`<${Loading} loading=${value.status.loading} />`}
      ${value && html`<${Loaded} models=${value.models} isDefault=${(/** @type {string} */ name) => name === value.status.default} onChange=${change} />`}
      <h2 class="part-title">${t("engine.on_disk")}</h2>
      ${value && !hasFolder && html`<p class="muted">${t("engine.no_folder")}</p>`}
      ${folder.error && html`<${Failure} error=${folder.error} adminOnly />`}
      ${hasFolder && folder.value && html`<${Files} files=${folder.value.files} onChoose=${setChosen} />`}
      ${devices && html`<${Devices} devices=${devices} />`}
      ${
        chosen &&
        html`<${LoadDialog} file=${chosen} devices=${devices ?? []} onClose=${() => setChosen(null)} onLoaded=${change} />`
      }
    </div>
  `;
}

/** @param {AbortSignal} signal */
async function load(signal) {
  const [models, status] = await Promise.all(["/v1/models", "/v1/engine"].map((path) => get(path, { signal })));
  return {
    models: /** @type {Model[]} */ (models.data).filter(({ parent }) => parent === undefined), // without tuned states
    status: /** @type {import("./live.js").ServerStatus} */ (status),
  };
}

/** @param {AbortSignal} signal @returns {Promise<string[]>} */
const loadDevices = (signal) => get("/api/adapters", { signal });

/** @param {boolean} hasFolder @param {AbortSignal} signal */
async function loadFolder(hasFolder, signal) {
  return { files: /** @type {ModelFile[]} */ (hasFolder ? await get("/api/models/list", { signal }) : []) };
}

/** @param {{models: Model[], isDefault: (name: string) => boolean, onChange: () => void}} props */
function Loaded({ models, isDefault, onChange }) {
  const [busy, setBusy] = useState("");
  /** @param {string} model */
  const unload = async (model) => {
    setBusy(model);
    try {
      await post("/admin/models/unload", { model });
      notify(t("engine.unloaded", { model }));
    } catch (error) {
      notifyError(error);
    } finally {
      setBusy("");
      onChange();
    }
  };
  return html`
    <section>
      <h2 class="unseen">${t("engine.loaded")}</h2>
      <div class="cards">
        ${models.map(
          ({ id, meta }) => html`
            <section key=${id} class="card" aria-label=${id}>
              <div class="card-head">
                <h3>${id}${isDefault(id) && html` <b class="badge">${t("engine.default")}</b>`}</h3>
                <span class="muted">${statusName(meta.status)}</span>
              </div>
              <dl class="facts-list">
                ${factsOf(meta).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
              </dl>
              <div class="row is-end">
                <${Button} disabled=${meta.status !== "loaded" || busy === id} onClick=${() => unload(id)}>
                  ${t("engine.unload")}
                <//>
              </div>
            </section>
          `,
        )}
      </div>
    </section>
  `;
}

/** @param {Record<string, any>} meta */
function factsOf(meta) {
  const loras = meta.loras.map((/** @type {{name: string, alpha: number | null}} */ lora) => lora.name).join(", ");
  return [
    [t("engine.version"), `RWKV ${meta.version}`],
    [t("engine.layers"), `${meta.num_layers} × ${formatNumber(meta.width)}`],
    [t("engine.weights"), [meta.weights, ...Object.keys(meta.blocks)].join(", ")],
    [t("engine.device"), meta.parts.map(partName).join(", ") || meta.device],
    [t("engine.slots"), formatNumber(meta.num_slots)],
    [t("engine.state_size"), formatBytes(meta.state_bytes)],
    [t("engine.device_memory"), meta.device_bytes === null ? "–" : formatBytes(meta.device_bytes)],
    [t("engine.loras"), loras || "–"],
  ];
}

/** @param {{device: string, first_layer: number, last_layer: number, num_bytes: number | null}} part */
function partName({ device, first_layer, last_layer, num_bytes }) {
  return `${first_layer}–${last_layer}: ${device}${num_bytes === null ? "" : ` (${formatBytes(num_bytes)})`}`;
}

/** @param {string} status */
function statusName(status) {
  switch (status) {
    case "loaded":
    case "loading":
    case "unloading":
    case "unloaded":
      return t(`engine.status.${status}`);
    default:
      return status;
  }
}

/** @param {{files: ModelFile[], onChoose: (file: ModelFile) => void}} props */
function Files({ files, onChoose }) {
  if (files.length === 0) return html`<p class="muted">${t("engine.empty_folder")}</p>`;
  return html`
    <div class="table-box">
      <table class="list">
        <tbody>
          ${files.map(
            (file) => html`
              <tr key=${file.path}>
                <th scope="row">${file.name}</th>
                <td class="number">${formatBytes(file.size)}</td>
                <td class="is-minor">${file.info ? `RWKV ${file.info.version.toLowerCase()}` : t("engine.no_model")}</td>
                <td class="is-end">
                  ${
                    file.info &&
                    html`
                      <${Button} aria-label=${t("engine.load_of", { name: file.name })} onClick=${() => onChoose(file)}>
                        ${t("engine.load_model")}
                      <//>
                    `
                  }
                </td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

/** @param {{devices: string[]}} props */
function Devices({ devices }) {
  return html`
    <section>
      <h2 class="part-title">${t("engine.devices")}</h2>
      ${
        devices.length === 0
          ? html`<p class="muted">${t("engine.no_devices")}</p>`
          : html`<ol class="devices" start="0">${devices.map((device) => html`<li key=${device}>${device}</li>`)}</ol>`
      }
    </section>
  `;
}
