// What can be done with a conversation as a whole: rename, save as a file, delete.

import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { useFieldId } from "../../components/fields.js";
import { notifyError } from "../../components/notices.js";
import { saveFile } from "../../components/save_file.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { changeConversation, deleteConversation, findConversation } from "./conversations.js";
import { stopAnswer } from "./running.js";
import { fileName, toJson, toMarkdown } from "./transfer.js";
import { titleOf } from "./tree.js";

/** @param {{id: string, onClose: () => void}} props */
export function ConversationDialog({ id, onClose }) {
  const field = useFieldId();
  const conversation = findConversation(id);
  const [title, setTitle] = useState(conversation === undefined ? "" : titleOf(conversation));
  const [asked, setAsked] = useState(false);
  if (conversation === undefined) return null;
  const name = fileName(titleOf(conversation));
  const names = { user: t("chat.you"), assistant: t("chat.model"), tool: t("chat.result") };
  /** @param {Event} event */
  const rename = (event) => {
    event.preventDefault();
    changeConversation(id, (current) => ({ ...current, title: title.trim() }));
    onClose();
  };
  const erase = () => {
    stopAnswer(id);
    deleteConversation(id).catch(notifyError);
    onClose();
  };
  return html`
    <${Dialog} title=${t("chat.conversation")} onClose=${onClose}>
      <div class="stack">
        <form class="stack" onSubmit=${rename}>
          <div class="field">
            <label for=${field}>${t("chat.title")}</label>
            <input id=${field} value=${title} onInput=${(/** @type {any} */ event) => setTitle(event.target.value)} />
          </div>
          <div class="row is-end"><${Button} kind="main" type="submit">${t("chat.rename")}<//></div>
        </form>
        <div class="row">
          <${Button}
            icon="download"
            onClick=${() => saveFile(`${name}.json`, toJson([conversation]), "application/json")}
          >
            ${t("chat.export_json")}
          <//>
          <${Button}
            icon="download"
            onClick=${() => saveFile(`${name}.md`, toMarkdown(conversation, names), "text/markdown")}
          >
            ${t("chat.export_markdown")}
          <//>
        </div>
        <div class="row">
          <${Button} kind="danger" icon="trash" onClick=${asked ? erase : () => setAsked(true)}>
            ${t(asked ? "chat.delete_sure" : "chat.delete")}
          <//>
        </div>
      </div>
    <//>
  `;
}
