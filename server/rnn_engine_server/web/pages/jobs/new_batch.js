// A new batch, of the requests in a file of the person.

import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Select } from "../../components/fields.js";
import { notify, notifyError } from "../../components/notices.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { beginBatch } from "./calls.js";

const WINDOWS = ["1h", "24h", "7d", "30d"];

/** @param {{onClose: () => void, onBegun: () => void}} props */
export function NewBatchDialog({ onClose, onBegun }) {
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [window, setWindow] = useState("24h");
  const [busy, setBusy] = useState(false);
  /** @param {Event} event */
  const begin = async (event) => {
    event.preventDefault();
    if (file === null) return;
    setBusy(true);
    try {
      await beginBatch(file, window);
      notify(t("jobs.begun", { name: file.name }));
      onBegun();
      onClose();
    } catch (error) {
      notifyError(error);
      setBusy(false);
    }
  };
  return html`
    <${Dialog} title=${t("jobs.new")} onClose=${onClose}>
      <form class="stack" onSubmit=${begin}>
        <label class="field">
          <span>${t("jobs.file")}</span>
          <input
            type="file"
            required
            accept=".jsonl,.ndjson,.json,.txt"
            onChange=${(/** @type {any} */ event) => setFile(event.target.files[0] ?? null)}
          />
        </label>
        <p class="muted small">${t("jobs.file.hint")}</p>
        <pre class="jobs-example"><code>${EXAMPLE}</code></pre>
        <${Select}
          label=${t("jobs.window")}
          value=${window}
          options=${WINDOWS.map((value) => ({ value, label: value }))}
          onChange=${setWindow}
        />
        <div class="row is-end">
          <${Button} kind="main" type="submit" disabled=${file === null || busy}>${t(busy ? "jobs.sending" : "jobs.begin")}<//>
        </div>
      </form>
    <//>
  `;
}

const EXAMPLE =
  '{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", ' +
  '"body": {"messages": [{"role": "user", "content": "Hello"}]}}';
