// States under names.

import { Button, IconButton } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatBytes, formatSpan } from "../../components/format.js";
import { usePolling } from "../../components/polling.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { NewStateDialog } from "./new_state.js";
import { StateDialog } from "./state_dialog.js";
import { listStates } from "./state_calls.js";

const SECONDS = 3;

/** @typedef {import("./state_calls.js").NamedState} NamedState */

export function NamedPart() {
  const [open, setOpen] = useState("");
  const [making, setMaking] = useState(false);
  const model = modelName();
  const { value, error, reload } = usePolling((signal) => listStates(signal), SECONDS, [model]);
  const chosen = value?.data.find(({ id }) => id === open);
  return html`
    <div>
      <div class="bar">
        <${Button} kind="main" icon="plus" onClick=${() => setMaking(true)}>${t("states.new")}<//>
        ${
          value &&
          html`<p class="muted">${t("states.use", { used: formatBytes(value.bytes), most: formatBytes(value.capacity) })}</p>`
        }
      </div>
      ${error && html`<${Failure} error=${error} />`}
      ${value && value.data.length === 0 && html`<p class="empty">${t("states.no_names")}</p>`}
      ${value && value.data.length > 0 && html`<${StateTable} value=${value} onOpen=${setOpen} />`}
      ${making && html`<${NewStateDialog} onClose=${() => setMaking(false)} onMade=${reload} />`}
      ${chosen && html`<${StateDialog} state=${chosen} onClose=${() => setOpen("")} onChange=${reload} />`}
    </div>
  `;
}

/** @param {{value: {data: NamedState[], default: string | null}, onOpen: (id: string) => void}} props */
function StateTable({ value, onOpen }) {
  return html`
    <div class="table-box">
      <table class="list">
        <thead>
          <tr>
            <th scope="col">${t("states.name")}</th>
            <th scope="col" class="number is-minor">${t("states.length")}</th>
            <th scope="col" class="number">${t("states.size")}</th>
            <th scope="col">${t("states.kept")}</th>
            <th scope="col" class="is-minor">${t("states.source")}</th>
            <th scope="col"><span class="unseen">${t("states.actions")}</span></th>
          </tr>
        </thead>
        <tbody>
          ${value.data.map(
            (state) => html`
              <tr key=${state.id}>
                <th scope="row">
                  <button class="link" onClick=${() => onOpen(state.id)}>${state.name}</button>
                  ${state.name === value.default && html` <b class="badge">${t("states.default")}</b>`}
                </th>
                <td class="number is-minor">${state.num_tokens === null ? "–" : formatNumber(state.num_tokens)}</td>
                <td class="number">${formatBytes(state.bytes)}</td>
                <td>${retentionOf(state)}</td>
                <td class="is-minor">${state.source}</td>
                <td class="is-end">
                  <${IconButton}
                    icon="more"
                    label=${t("states.actions_of", { name: state.name })}
                    onClick=${() => onOpen(state.id)}
                  />
                </td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

/** @param {NamedState} state */
function retentionOf(state) {
  if (state.read_only) return t("states.read_only");
  if (state.persistent) return t("states.for_good");
  const owner = state.owner ?? state.name;
  return t("states.leased", { owner, time: formatSpan(state.expires_in ?? 0) });
}
