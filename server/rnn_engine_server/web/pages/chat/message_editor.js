// The field for editing a message: Enter sends or saves it, Shift+Enter begins a new line, Escape cancels.

import { Button } from "../../components/button.js";
import { isEscape, isSendKey } from "../../components/keys.js";
import { t } from "../../strings/index.js";
import { html, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { fitHeight } from "./composer.js";

/**
 * @param {{
 *   message: import("./tree.js").Message, isBusy: boolean, onSave: (text: string) => void, onCancel: () => void,
 * }} props `isBusy`: an answer is being made, so nothing can be sent now.
 */
export function MessageEditor({ message, isBusy, onSave, onCancel }) {
  const [text, setText] = useState(message.content);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const isAnswer = message.role === "assistant";
  const isReady = text.trim() !== "" && !isBusy;
  useLayoutEffect(() => fitHeight(area.current), [text]);
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, []);
  const save = () => isReady && onSave(text.trim());
  /** @param {KeyboardEvent} event */
  const saveAtEnter = (event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    save();
  };
  /** @param {KeyboardEvent} event */
  const cancelAtEscape = (event) => {
    if (!isEscape(event)) return;
    event.stopPropagation(); // elsewhere, Escape stops an answer
    onCancel();
  };
  return html`
    <div class="stack message-editor" onKeyDown=${cancelAtEscape}>
      <textarea
        ref=${area}
        rows="1"
        aria-label=${t("chat.edit")}
        aria-describedby=${`keys-${message.id}`}
        value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)}
        onKeyDown=${saveAtEnter}
      ></textarea>
      <div class="row is-end">
        <span class="keys" id=${`keys-${message.id}`}>${t(isAnswer ? "chat.save_keys" : "chat.edit_keys")}</span>
        <${Button} onClick=${onCancel}>${t("chat.cancel")}<//>
        <${Button} kind="main" disabled=${!isReady} onClick=${save}>${t(isAnswer ? "chat.save" : "chat.send")}<//>
      </div>
    </div>
  `;
}
