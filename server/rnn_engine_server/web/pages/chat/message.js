// One message, and the actions on it.

import { Button, IconButton } from "../../components/button.js";
import { CopyButton } from "../../components/copy_button.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { focusComposer } from "./composer.js";
import { MessageBody } from "./message_body.js";
import { MessageEditor } from "./message_editor.js";
import { askForAnswer, continueAnswer, sendMessages } from "./running.js";
import { StatsLine } from "./stats.js";
import { CallResults } from "./tool_calls.js";
import { addMessage, chooseMessage, endAt, newId, siblingsOf } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */
/** @typedef {import("./tree.js").Message} Message */

/**
 * @typedef {object} MessageProps
 * @property {Conversation} conversation
 * @property {Message} message
 * @property {boolean} isLast
 * @property {boolean} isBusy An answer of the conversation is being made.
 * @property {(change: (conversation: Conversation) => Conversation) => void} change
 */

const NAMES = /** @type {const} */ ({ user: "chat.you", assistant: "chat.model", tool: "chat.result" });

/** @param {MessageProps} props */
export function MessageView(props) {
  const { conversation, message, isLast, isBusy, change } = props;
  const { calls = [] } = message;
  const [editing, setEditing] = useState(false);
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const cancelled = useRef(false);
  useLayoutEffect(() => {
    if (cancelled.current) element.current?.querySelector(/** @type {"button"} */ (".is-edit"))?.focus();
    cancelled.current = false;
  }, [editing]);
  const cancel = () => {
    cancelled.current = true;
    setEditing(false);
  };
  /** @param {string} text */
  const save = (text) => {
    setEditing(false);
    focusComposer();
    if (message.role === "assistant") {
      change((current) => addMessage(current, { ...message, id: newId(), content: text, stats: undefined, error: undefined }));
    } else {
      sendMessages(conversation.id, message.parent, [{ role: message.role, content: text, callId: message.callId }]);
    }
  };
  return html`
    <article ref=${element} class=${`message is-${message.role}`} aria-label=${t(NAMES[message.role])}>
      ${
        editing
          ? html`<${MessageEditor} message=${message} isBusy=${isBusy} onSave=${save} onCancel=${cancel} />`
          : html`<${MessageBody} message=${message} isRunning=${isLast && isBusy} />`
      }
      ${message.error && html`<${Failure} ...${props} />`}
      ${
        !editing &&
        html`
          <div class="message-foot">
            <${StatsLine} message=${message} />
            ${!(isLast && isBusy) && html`<${Actions} ...${props} onEdit=${() => setEditing(true)} />`}
          </div>
        `
      }
      ${
        isLast &&
        !isBusy &&
        calls.length > 0 &&
        html`
          <${CallResults}
            calls=${calls}
            onSend=${(/** @type {any[]} */ results) => sendMessages(conversation.id, message.id, results)}
          />
        `
      }
    </article>
  `;
}

/** @param {MessageProps} props */
function Failure({ conversation, message, isLast, isBusy }) {
  return html`
    <div class="message-error" role="alert">
      <p>${message.error}</p>
      ${
        isLast &&
        !isBusy &&
        html`
          <${Button} icon="retry" onClick=${() => askForAnswer(conversation.id, message.parent)}>${t("chat.retry")}<//>
          ${
            message.content &&
            html`<${Button} onClick=${() => continueAnswer(conversation.id, message.id)}>${t("chat.continue")}<//>`
          }
        `
      }
    </div>
  `;
}

/** @param {MessageProps & {onEdit: () => void}} props */
function Actions({ conversation, message, isLast, isBusy, change, onEdit }) {
  const { id } = conversation;
  const isAnswer = message.role === "assistant";
  const isLeft = message.finish === null && !message.error; // the page was closed
  const isCut = message.finish === "length" || message.finish === "stopped" || isLeft;
  return html`
    <div class="message-actions">
      <${Siblings} conversation=${conversation} message=${message} change=${change} />
      <${CopyButton} text=${message.content} />
      <${IconButton}
        icon="edit"
        class="button is-quiet is-icon is-edit"
        label=${t("chat.edit")}
        disabled=${isBusy}
        onClick=${onEdit}
      />
      ${
        isAnswer &&
        html`
          <${IconButton}
            icon="retry"
            label=${t("chat.regenerate")}
            disabled=${isBusy}
            onClick=${() => askForAnswer(id, message.parent)}
          />
        `
      }
      ${
        isAnswer &&
        !isLast &&
        html`
          <${IconButton}
            icon="fork"
            label=${t("chat.fork")}
            disabled=${isBusy}
            onClick=${() => change((current) => endAt(current, message.id))}
          />
        `
      }
      ${
        isAnswer &&
        isLast &&
        isCut &&
        message.content &&
        html`<${Button} kind="quiet" onClick=${() => continueAnswer(id, message.id)}>${t("chat.continue")}<//>`
      }
    </div>
  `;
}

/** Steps through the versions of a message. @param {Pick<MessageProps, "conversation" | "message" | "change">} props */
function Siblings({ conversation, message, change }) {
  const all = siblingsOf(conversation, message);
  if (all.length < 2) return null;
  const place = all.indexOf(message);
  /** @param {number} index */
  const show = (index) => () => change((current) => chooseMessage(current, all[index]));
  return html`
    <span class="siblings" role="group" aria-label=${t("chat.versions")}>
      <${IconButton} icon="left" label=${t("chat.version_before")} disabled=${place === 0} onClick=${show(place - 1)} />
      <span>${formatNumber(place + 1)} / ${formatNumber(all.length)}</span>
      <${IconButton}
        icon="right"
        label=${t("chat.version_after")}
        disabled=${place === all.length - 1}
        onClick=${show(place + 1)}
      />
    </span>
  `;
}
