// The field for writing a message: Enter sends, Shift+Enter begins a new line, Escape stops an answer.

import { IconButton } from "../../components/button.js";
import { isSendKey } from "../../components/keys.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useLayoutEffect, useRef } from "../../vendor/preact.js";
import { drafts, writeDraft } from "./drafts.js";

/**
 * @param {{id: string, running: boolean, onSend: (text: string) => void, onStop: () => void}} props `id`: of the
 * conversation that the draft belongs to.
 */
export function Composer({ id, running, onSend, onStop }) {
  const text = useStore(drafts)[id] ?? "";
  /** @param {string} changed */
  const setText = (changed) => writeDraft(id, changed);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => fitHeight(area.current), [text]);
  useEffect(focusComposer, []);
  const send = () => {
    if (running || text.trim() === "") return;
    setText("");
    onSend(text.trim());
  };
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    send();
  };
  return html`
    <form
      class="composer"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref=${area}
        rows="1"
        aria-label=${t("chat.message")}
        title=${t("chat.keys")}
        placeholder=${t("chat.placeholder")}
        value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)}
        onKeyDown=${onKey}
      ></textarea>
      ${
        running
          ? html`<${IconButton} icon="stop" label=${t("chat.stop")} onClick=${onStop} />`
          : html`<${IconButton} icon="send" label=${t("chat.send")} type="submit" disabled=${text.trim() === ""} />`
      }
    </form>
  `;
}

/** Put the caret into the field, except where that would open a keyboard on the screen. */
export function focusComposer() {
  if (!matchMedia("(pointer: fine)").matches) return;
  document.querySelector(/** @type {"textarea"} */ (".composer textarea"))?.focus({ preventScroll: true });
}

/** Make a field as high as its text. @param {HTMLTextAreaElement | null} area */
export function fitHeight(area) {
  if (area === null) return;
  area.style.height = "auto";
  const borders = area.offsetHeight - area.clientHeight;
  area.style.height = `${area.scrollHeight + borders}px`;
}
