// A copy of a tuned state under a name that the person chooses.

import { post } from "../../api.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { notify, notifyError } from "../../components/notices.js";
import { Retention, retentionBody } from "../../components/retention.js";
import { loadStates } from "../../server.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";

/** @param {{state: string, model: string, onClose: () => void}} props */
export function KeepDialog({ state, model, onClose }) {
  const [name, setName] = useState(state.replace(/^ft-/, "").replace(/-[0-9a-f]{6}(:.*)?$/, ""));
  const [retention, setRetention] = useState({ persistent: false, owner: "", ttl: "" });
  const keep = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      const path = `/v1/states/${encodeURIComponent(state)}/fork?model=${encodeURIComponent(model)}`;
      await post(path, { names: [name], ...retentionBody(retention) });
      notify(t("states.kept_as", { name }));
      loadStates().catch(notifyError);
      onClose();
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <${Dialog} title=${t("tune.keep.title")} onClose=${onClose}>
      <form class="stack" onSubmit=${keep}>
        <label class="field">
          <span>${t("states.name")}</span>
          <input required value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} />
        </label>
        <${Retention} value=${retention} onChange=${setRetention} />
        <div class="row is-end"><${Button} kind="main" type="submit">${t("tune.keep")}<//></div>
      </form>
    <//>
  `;
}
