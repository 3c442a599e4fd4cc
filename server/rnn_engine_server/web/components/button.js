// Buttons: with a text, or with an icon alone.

import { html } from "../vendor/preact.js";
import { Icon } from "./icons.js";

/**
 * @param {{
 *   kind?: "plain" | "main" | "quiet" | "danger",
 *   icon?: import("./icons.js").IconName,
 *   type?: "button" | "submit",
 *   children?: any,
 *   [attribute: string]: any,
 * }} props Further attributes go to the button.
 */
export function Button({ kind = "plain", icon, type = "button", children, ...attributes }) {
  return html`
    <button type=${type} class=${`button is-${kind}`} ...${attributes}>
      ${icon && html`<${Icon} name=${icon} />`}${children}
    </button>
  `;
}

/**
 * @param {{icon: import("./icons.js").IconName, label: string, [attribute: string]: any}} props
 *   `label` is read out, and shown where the pointer rests.
 */
export function IconButton({ icon, label, ...attributes }) {
  return html`
    <button type="button" class="button is-quiet is-icon" aria-label=${label} title=${label} ...${attributes}>
      <${Icon} name=${icon} />
    </button>
  `;
}
