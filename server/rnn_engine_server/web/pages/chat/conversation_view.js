// The conversation that is open: its messages, and the field for the next one.

import { IconButton } from "../../components/button.js";
import { isEscape } from "../../components/keys.js";
import { stateNames } from "../../server.js";
import { useStore } from "../../store.js";
import { go } from "../../router.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useLayoutEffect, useRef } from "../../vendor/preact.js";
import { Composer } from "./composer.js";
import { Examples } from "./examples.js";
import { MessageView } from "./message.js";
import { running, sendMessages, stopAnswer } from "./running.js";
import { childrenOf, goBack, pathOf, titleOf } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const NEAR_PIXELS = 48;

/**
 * @param {{
 *   conversation: Conversation, change: (change: (conversation: Conversation) => Conversation) => void,
 *   onList?: () => void, onSettings: () => void,
 * }} props `onList`: opens the list if it is not beside the conversation.
 */
export function ConversationView({ conversation, change, onList, onSettings }) {
  const { id } = conversation;
  const isRunning = useStore(running).has(id);
  const path = pathOf(conversation);
  const last = path.at(-1);
  const scroll = useScroll(conversation);
  useStopAtEscape(id);
  /** @param {string} text @param {Partial<import("./tree.js").Settings>} [settings] */
  const send = (text, settings = {}) => {
    change((current) => ({ ...current, settings: { ...current.settings, ...settings } }));
    scroll.follow();
    sendMessages(id, last?.id ?? null, [{ role: "user", content: text }]);
    go("chat", id);
  };
  const branches = last === undefined ? [] : childrenOf(conversation, last.id);
  return html`
    <section class="chat-main" aria-label=${t("chat.conversation")}>
      <div class="chat-bar">
        ${onList && html`<${IconButton} icon="menu" label=${t("chat.conversations")} onClick=${onList} />`}
        <h1>${titleOf(conversation) || t("chat.new")}</h1>
        <${StateChoice} conversation=${conversation} change=${change} />
        <${IconButton} icon="sliders" label=${t("settings.title")} onClick=${onSettings} />
      </div>
      <div class="chat-scroll" ref=${scroll.element} onScroll=${scroll.onScroll} tabindex="-1">
        <div class="chat-column">
          ${path.length === 0 && html`<${Examples} onChoose=${send} />`}
          ${path.map(
            (message) => html`
              <${MessageView}
                key=${message.id}
                conversation=${conversation}
                message=${message}
                isLast=${message === last}
                isBusy=${isRunning}
                change=${change}
              />
            `,
          )}
          ${
            branches.length > 0 &&
            html`
              <p class="chat-fork">
                ${t("chat.forked")}${" "}
                <button type="button" class="link" onClick=${() => change((current) => goBack(current, last?.id ?? ""))}>
                  ${t("chat.back")}
                </button>
              </p>
            `
          }
        </div>
      </div>
      <div class="chat-column">
        <${Composer} id=${path.length === 0 ? "" : id} running=${isRunning} onSend=${send} onStop=${() => stopAnswer(id)} />
      </div>
      <${Announcer} isRunning=${isRunning} text=${last?.role === "assistant" ? last.content : ""} />
    </section>
  `;
}

/** @param {{conversation: Conversation, change: (change: (conversation: Conversation) => Conversation) => void}} props */
function StateChoice({ conversation, change }) {
  const { state } = conversation.settings;
  const names = [...new Set([...useStore(stateNames), ...(state ? [state] : [])])];
  /** @param {any} event */
  const choose = (event) =>
    change((current) => ({ ...current, settings: { ...current.settings, state: event.target.value } }));
  return html`
    <label class="state-choice" title=${t("settings.state_hint")}>
      <span>${t("settings.state")}</span>
      <select value=${state} onChange=${choose}>
        <option value="">${t("settings.state_default")}</option>
        ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </label>
  `;
}

/** Reads out an answer when it is whole, not piece by piece. @param {{isRunning: boolean, text: string}} props */
function Announcer({ isRunning, text }) {
  const ran = useRef(false);
  if (isRunning) ran.current = true;
  const told = isRunning ? t("chat.answering") : ran.current ? text : "";
  return html`<div class="unseen" role="status">${told}</div>`;
}

/** Keep the end in view while the person has not scrolled away from it. @param {Conversation} conversation */
function useScroll(conversation) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current && element.current) element.current.scrollTop = element.current.scrollHeight;
  }, [conversation]);
  const onScroll = () => {
    const box = element.current;
    if (box) follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PIXELS;
  };
  return { element, onScroll, follow: () => void (follows.current = true) };
}

/** @param {string} id */
function useStopAtEscape(id) {
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const stop = (event) => isEscape(event) && !document.querySelector("dialog[open]") && stopAnswer(id);
    addEventListener("keydown", stop);
    return () => removeEventListener("keydown", stop);
  }, [id]);
}
