// The list of conversations, the latest first; a new one, and reading them from a file.

import { Button, IconButton } from "../../components/button.js";
import { notify, notifyError } from "../../components/notices.js";
import { saveFile } from "../../components/save_file.js";
import { go } from "../../router.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useRef, useState } from "../../vendor/preact.js";
import { ConversationDialog } from "./conversation_dialog.js";
import { conversations, putConversation } from "./conversations.js";
import { running } from "./running.js";
import { fromJson, toJson } from "./transfer.js";
import { titleOf } from "./tree.js";

/** @param {{current: string, onNew: () => void}} props */
export function ConversationList({ current, onNew }) {
  const [asked, setAsked] = useState(/** @type {string | null} */ (null));
  const kept = [...useStore(conversations).values()].filter(({ messages }) => messages.length > 0);
  kept.sort((a, b) => b.changed - a.changed);
  return html`
    <div class="chat-list">
      <${Button} icon="plus" onClick=${onNew}>${t("chat.new")}<//>
      <ul>
        ${kept.map(
          (conversation) => html`
            <${Row}
              key=${conversation.id}
              conversation=${conversation}
              isCurrent=${conversation.id === current}
              onMore=${() => setAsked(conversation.id)}
            />
          `,
        )}
      </ul>
      <div class="row">
        <${ImportButton} />
        ${
          kept.length > 0 &&
          html`
            <${Button}
              kind="quiet"
              icon="download"
              onClick=${() => saveFile("conversations.json", toJson(kept), "application/json")}
            >
              ${t("chat.export_all")}
            <//>
          `
        }
      </div>
    </div>
    ${asked !== null && html`<${ConversationDialog} id=${asked} onClose=${() => setAsked(null)} />`}
  `;
}

/** @param {{conversation: import("./tree.js").Conversation, isCurrent: boolean, onMore: () => void}} props */
function Row({ conversation, isCurrent, onMore }) {
  const isRunning = useStore(running).has(conversation.id);
  const title = titleOf(conversation) || t("chat.untitled");
  return html`
    <li class=${isCurrent ? "is-current" : ""}>
      <a href=${`#/chat/${conversation.id}`} aria-current=${isCurrent ? "true" : undefined} title=${title}>
        ${isRunning && html`<i class="pulse"></i>`}${title}
      </a>
      <${IconButton} icon="more" label=${t("chat.more", { title })} onClick=${onMore} />
    </li>
  `;
}

function ImportButton() {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  /** @param {any} event */
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file === undefined) return;
    const found = fromJson(await file.text(), t("chat.import_error", { name: file.name }));
    for (const conversation of found) putConversation(conversation);
    notify(t("chat.imported", { n: found.length }));
    if (found.length > 0) go("chat", found[0].id);
  };
  return html`
    <input
      ref=${input}
      type="file"
      class="unseen"
      tabindex="-1"
      aria-label=${t("chat.import")}
      accept="application/json,.json"
      onChange=${(/** @type {any} */ event) => read(event).catch(notifyError)}
    />
    <${Button} kind="quiet" icon="upload" onClick=${() => input.current?.click()}>${t("chat.import")}<//>
  `;
}
