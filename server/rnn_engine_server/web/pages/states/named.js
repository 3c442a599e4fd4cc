// States under names, and the leases by which clients keep them.

import { get, remove } from "../../api.js";
import { Button, IconButton } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatBytes, formatSpan } from "../../components/format.js";
import { notify, notifyError } from "../../components/notices.js";
import { usePolling } from "../../components/polling.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { NewStateDialog } from "./new_state.js";
import { StateDialog } from "./state_dialog.js";
import { listStates } from "./state_calls.js";

const SECONDS = 3;

/** @typedef {import("./state_calls.js").NamedState} NamedState */
/** @typedef {import("./state_calls.js").Lease} Lease */

export function NamedPart() {
  const [open, setOpen] = useState("");
  const [making, setMaking] = useState(false);
  const model = modelName();
  const { value, error, reload } = usePolling((signal) => load(model, signal), SECONDS, [model]);
  const chosen = value?.states.find(({ id }) => id === open);
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
      ${value && value.states.length === 0 && html`<p class="empty">${t("states.no_names")}</p>`}
      ${value && value.states.length > 0 && html`<${StateTable} value=${value} onOpen=${setOpen} />`}
      ${value && value.leases.length > 0 && html`<${LeaseTable} leases=${value.leases} onChange=${reload} />`}
      ${making && html`<${NewStateDialog} onClose=${() => setMaking(false)} onMade=${reload} />`}
      ${chosen && html`<${StateDialog} state=${chosen} onClose=${() => setOpen("")} onChange=${reload} />`}
    </div>
  `;
}

/** @param {string} model @param {AbortSignal} signal */
async function load(model, signal) {
  const [listing, leases] = await Promise.all([
    listStates(signal),
    get(`/v1/leases?model=${encodeURIComponent(model)}`, { signal }),
  ]);
  const { data, ...rest } = listing;
  return { states: data, leases: /** @type {Lease[]} */ (leases.data), ...rest };
}

/** @param {{value: {states: NamedState[], default: string | null}, onOpen: (id: string) => void}} props */
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
          ${value.states.map(
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

/** @param {{leases: Lease[], onChange: () => void}} props */
function LeaseTable({ leases, onChange }) {
  /** @param {Lease} lease */
  const end = async ({ owner }) => {
    try {
      await remove(`/v1/leases/${encodeURIComponent(owner)}?model=${encodeURIComponent(modelName())}`);
      notify(t("states.lease_ended", { owner }));
      onChange();
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <section>
      <h2 class="part-title">${t("states.leases")}</h2>
      <div class="table-box">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">${t("states.owner")}</th>
              <th scope="col">${t("states.states")}</th>
              <th scope="col" class="number is-minor">${t("states.size")}</th>
              <th scope="col">${t("states.ends_in")}</th>
              <th scope="col"><span class="unseen">${t("states.actions")}</span></th>
            </tr>
          </thead>
          <tbody>
            ${leases.map(
              (lease) => html`
                <tr key=${lease.owner}>
                  <th scope="row">${lease.owner}</th>
                  <td>${lease.states.join(", ")}</td>
                  <td class="number is-minor">${formatBytes(lease.bytes)}</td>
                  <td>${formatSpan(lease.expires_in)}</td>
                  <td class="is-end">
                    <${Button} aria-label=${t("states.release_of", { owner: lease.owner })} onClick=${() => end(lease)}>
                      ${t("states.release")}
                    <//>
                  </td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}
