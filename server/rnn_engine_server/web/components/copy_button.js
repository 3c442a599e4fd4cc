// A button that copies a text.

import { t } from "../strings/index.js";
import { html, useState } from "../vendor/preact.js";
import { IconButton } from "./button.js";
import { notifyError } from "./notices.js";

const SHOWN_MS = 1500;

/**
 * Copy a text to the clipboard, or by a selection if the browser denies pages without TLS the clipboard.
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** @param {{text: string, label?: string}} props */
export function CopyButton({ text, label = t("copy.text") }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), SHOWN_MS);
  };
  return html`
    <${IconButton}
      icon=${copied ? "check" : "copy"}
      label=${copied ? t("copy.done") : label}
      onClick=${() => copy().catch(notifyError)}
    />
  `;
}
