// What is shown at an address that names no page.

import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";

/** @param {{address: string}} props The address as the person sees it after `#/`. */
export function NoSuchPage({ address }) {
  return html`
    <div class="no-such-page">
      <h1>${t("missing.title")}</h1>
      <p>${t("missing.text", { address: `#/${address}` })}</p>
      <p><a href="#/chat">${t("missing.start")}</a></p>
    </div>
  `;
}
