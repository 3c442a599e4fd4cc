// A field for text that is typed or pasted, or comes from files that are chosen or dropped on it.

import { t } from "../strings/index.js";
import { html, useState } from "../vendor/preact.js";
import { TextField } from "./fields.js";
import { Icon } from "./icons.js";
import { notify } from "./notices.js";

const MOST_BYTES = 20_000_000;

/**
 * @param {{
 *   label: string, value: string, placeholder: string, accept: string, button: string, hint: string,
 *   onChange: (text: string) => void, onFiles: (texts: string[]) => void,
 * }} props `onFiles` gets the texts of files, which are not too large.
 */
export function FileField({ label, value, placeholder, accept, button, hint, onChange, onFiles }) {
  const [over, setOver] = useState(false);
  /** @param {FileList | null | undefined} chosen */
  const load = async (chosen) => {
    const files = [...(chosen ?? [])];
    const large = files.find((file) => file.size > MOST_BYTES);
    if (large) notify(t("file.tooLarge", { name: large.name }), "error");
    else if (files.length > 0) onFiles(await Promise.all(files.map((file) => file.text())));
  };
  return html`
    <div
      class=${over ? "drop is-over" : "drop"}
      onDragOver=${(/** @type {DragEvent} */ event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave=${() => setOver(false)}
      onDrop=${(/** @type {DragEvent} */ event) => {
        event.preventDefault();
        setOver(false);
        load(event.dataTransfer?.files);
      }}
    >
      <${TextField}
        label=${label}
        value=${value}
        rows=${8}
        placeholder=${placeholder}
        spellcheck=${false}
        onChange=${onChange}
      />
      <div class="row">
        <label class="button file">
          <input
            class="unseen"
            type="file"
            multiple
            accept=${accept}
            onChange=${(/** @type {any} */ event) => load(event.target.files)}
          />
          <${Icon} name="upload" />${button}
        </label>
        <span class="muted small">${hint}</span>
      </div>
    </div>
  `;
}
