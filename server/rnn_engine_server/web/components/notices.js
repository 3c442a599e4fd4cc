// Short messages at the edge of the page: errors stay until they are closed, others go by themselves.

import { createStore, useStore } from "../store.js";
import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";
import { IconButton } from "./button.js";

/** @typedef {{id: number, kind: "error" | "info", text: string}} Notice */

const SHOWN_MS = 4000;
const MOST = 4;
const notices = createStore(/** @type {Notice[]} */ ([]));
let count = 0;

/**
 * Show a message.
 * @param {string} text
 * @param {"error" | "info"} [kind]
 */
export function notify(text, kind = "info") {
  const id = ++count;
  const others = notices.get().filter((notice) => notice.text !== text);
  notices.set([...others, { id, kind, text }].slice(-MOST));
  if (kind === "info") setTimeout(() => close(id), SHOWN_MS);
}

/**
 * Show an error; do nothing if it says that the person stopped the call.
 * @param {unknown} error
 */
export function notifyError(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  notify(error instanceof Error ? error.message : String(error), "error");
}

/** @param {number} id */
function close(id) {
  notices.set(notices.get().filter((notice) => notice.id !== id));
}

export function Notices() {
  return html`
    <div class="notices" role="region" aria-live="polite" aria-label=${t("shell.notices")}>
      ${useStore(notices).map(
        ({ id, kind, text }) => html`
          <div key=${id} class=${`notice is-${kind}`} role=${kind === "error" ? "alert" : undefined}>
            <p>${text}</p>
            <${IconButton} icon="close" label=${t("shell.close")} onClick=${() => close(id)} />
          </div>
        `,
      )}
    </div>
  `;
}
