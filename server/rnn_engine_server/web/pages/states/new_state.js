// A new state under a name: from a text that is run, or from a file.

import { post, put } from "../../api.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { TextField } from "../../components/fields.js";
import { notify, notifyError } from "../../components/notices.js";
import { Retention, retentionBody } from "../../components/retention.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { statePath, statesPath } from "./state_calls.js";

/** @param {{onClose: () => void, onMade: () => void}} props */
export function NewStateDialog({ onClose, onMade }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [retention, setRetention] = useState({ persistent: false, owner: "", ttl: "" });
  const [busy, setBusy] = useState(false);
  /** @param {Event} event */
  const make = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await (file === null ? createFrom(text, name, retention) : upload(file, name, retention));
      notify(t("states.kept_as", { name }));
      onMade();
      onClose();
    } catch (error) {
      notifyError(error);
      setBusy(false);
    }
  };
  /** @param {File | null} chosen */
  const choose = (chosen) => {
    setFile(chosen);
    if (chosen !== null && name === "") setName(chosen.name.replace(/\.[^.]+$/, ""));
  };
  return html`
    <${Dialog} title=${t("states.new")} onClose=${onClose}>
      <form class="stack" onSubmit=${make}>
        <label class="field">
          <span>${t("states.name")}</span>
          <input required value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} />
        </label>
        <${TextField}
          label=${t("states.from_text")}
          value=${text}
          rows=${5}
          disabled=${file !== null}
          placeholder=${t("states.from_text_hint")}
          onChange=${setText}
        />
        <label class="field">
          <span>${t("states.from_file")}</span>
          <input type="file" onChange=${(/** @type {any} */ event) => choose(event.target.files[0] ?? null)} />
        </label>
        <${Retention} value=${retention} onChange=${setRetention} />
        <div class="row is-end"><${Button} kind="main" type="submit" disabled=${busy}>${t("states.make")}<//></div>
      </form>
    <//>
  `;
}

/** @param {string} text @param {string} name @param {import("../../components/retention.js").RetentionChoice} retention */
const createFrom = (text, name, retention) =>
  post(statesPath(), { name, prompt: text, state: "none", ...retentionBody(retention) });

/** @param {File} file @param {string} name @param {import("../../components/retention.js").RetentionChoice} retention */
function upload(file, name, retention) {
  const fields = Object.entries(retentionBody(retention)).filter(([, value]) => value !== null);
  return put(statePath(name, "", Object.fromEntries(fields.map(([field, value]) => [field, String(value)]))), file);
}
