// A dialog over the page, which keeps the focus and closes at Escape.

import { t } from "../strings/index.js";
import { html, useEffect, useRef } from "../vendor/preact.js";
import { IconButton } from "./button.js";

/**
 * Shown while it is drawn; `onClose` has to take it away.
 * @param {{title: string, onClose: () => void, side?: "left" | "right", wide?: boolean, children?: any}} props `side`: a drawer.
 */
export function Dialog({ title, onClose, side, wide, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  /** @param {MouseEvent} event */
  const closeOutside = (event) => event.target === element.current && onClose();
  return html`
    <dialog
      ref=${element}
      class=${side ? `dialog is-drawer is-${side}` : `dialog${wide ? " is-wide" : ""}`}
      aria-label=${title}
      onCancel=${(/** @type {Event} */ event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown=${closeOutside}
    >
      <div class="dialog-box">
        <div class="dialog-head">
          <h2>${title}</h2>
          <${IconButton} icon="close" label=${t("shell.close")} onClick=${onClose} />
        </div>
        ${children}
      </div>
    </dialog>
  `;
}
