// One state under a name: its facts, and the actions on it.

import { post, remove, send } from "../../api.js";
import { Button } from "../../components/button.js";
import { CopyButton } from "../../components/copy_button.js";
import { Dialog } from "../../components/dialog.js";
import { formatBytes, formatTime } from "../../components/format.js";
import { notify, notifyError } from "../../components/notices.js";
import { saveFile } from "../../components/save_file.js";
import { Retention, retentionBody } from "../../components/retention.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { statePath } from "./state_calls.js";

const FORMS = /** @type {const} */ ([
  ["full", ".state"],
  ["tuned", ".safetensors"],
  ["pth", ".pth"],
  ["prefab", ".cbor"],
]);

/** @typedef {import("./state_calls.js").NamedState} NamedState */

/** @param {{state: NamedState, onClose: () => void, onChange: () => void}} props */
export function StateDialog({ state, onClose, onChange }) {
  const [name, setName] = useState(state.name);
  const [retention, setRetention] = useState({
    persistent: state.persistent && !state.read_only,
    owner: state.owner ?? "",
    ttl: "",
  });
  /** @param {() => Promise<unknown>} action @param {string} done */
  const act = async (action, done) => {
    try {
      await action();
      notify(done);
      onChange();
      onClose();
    } catch (error) {
      notifyError(error);
    }
  };
  const isSame = name === state.name;
  const fork = () => post(statePath(state.id, "fork"), { names: [name], ...retentionBody(retention) });
  const move = () => post(statePath(state.id, "take"), { name, ...retentionBody(retention) });
  const drop = () => remove(statePath(state.id));
  return html`
    <${Dialog} title=${state.name} onClose=${onClose}>
      <div class="stack">
        <${Facts} state=${state} />
        <div class="row">
          ${FORMS.map(
            ([form, ending]) => html`
              <${Button}
                key=${form}
                icon="download"
                title=${t(`states.form.${form}`)}
                onClick=${() => download(state, form, ending).catch(notifyError)}
              >
                ${ending}
              <//>
            `,
          )}
          <a class="button" href=${`#/states/compare/${encodeURIComponent(state.name)}`}>${t("states.compare")}</a>
        </div>
        <hr />
        <label class="field">
          <span>${t("states.name")}</span>
          <input value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} />
          <span>${t("states.name_hint")}</span>
        </label>
        <${Retention} value=${retention} onChange=${setRetention} />
        <div class="row">
          <${Button} icon="fork" disabled=${isSame} onClick=${() => act(fork, t("states.forked", { name }))}>
            ${t("states.fork")}
          <//>
          <${Button} icon="edit" disabled=${state.read_only} onClick=${() => act(move, t("states.changed", { name }))}>
            ${t(isSame ? "states.keep_so" : "states.rename")}
          <//>
          <${Button}
            kind="danger"
            icon="trash"
            disabled=${state.read_only}
            onClick=${() => act(drop, t("states.removed", { name: state.name }))}
          >
            ${t("states.remove")}
          <//>
        </div>
        ${state.read_only && html`<p class="muted">${t("states.read_only_hint")}</p>`}
      </div>
    <//>
  `;
}

/** @param {{state: NamedState}} props */
function Facts({ state }) {
  const facts = [
    [t("states.form"), state.form],
    [t("states.size"), formatBytes(state.bytes)],
    [t("states.source"), state.source],
    [t("states.created"), formatTime(state.created)],
  ];
  return html`
    <dl class="facts-list">
      ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
      <div>
        <dt>${t("states.id")}</dt>
        <dd class="row is-tight"><code>${state.id.slice(0, 8)}…</code><${CopyButton} text=${state.id} /></dd>
      </div>
    </dl>
  `;
}

/** @param {NamedState} state @param {string} form @param {string} ending */
async function download(state, form, ending) {
  const answer = await send("GET", statePath(state.id, "export", { form }));
  saveFile(state.name.replaceAll(/[^\p{L}\p{N}._-]+/gu, "-") + ending, await answer.blob());
}
