// The page Chat: a conversation with the model.

import { Button } from "../../components/button.js";
import { Markdown } from "../../components/markdown.js";
import { notifyError } from "../../components/notices.js";
import { modelName } from "../../server.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { streamAnswer } from "./answer.js";
import { Composer } from "./composer.js";

/** @typedef {{role: "user" | "assistant", content: string, reasoning?: string}} Message */

export function Page() {
  const [messages, setMessages] = useState(/** @type {Message[]} */ ([]));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [messages]);
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const stopAtEscape = (event) => event.key === "Escape" && running?.abort();
    addEventListener("keydown", stopAtEscape);
    return () => removeEventListener("keydown", stopAtEscape);
  }, [running]);
  /** @param {string} text */
  const send = async (text) => {
    /** @type {Message[]} */
    const asked = [...messages, { role: "user", content: text }];
    const stopping = new AbortController();
    setRunning(stopping);
    setMessages(asked);
    try {
      const sent = asked.map(({ role, content }) => ({ role, content }));
      for await (const answer of streamAnswer(sent, { model: modelName() }, stopping.signal)) {
        setMessages([...asked, { role: "assistant", content: answer.content, reasoning: answer.reasoning }]);
      }
    } catch (error) {
      notifyError(error);
    } finally {
      setRunning(null);
    }
  };
  return html`
    <div class="chat">
      <div class="chat-scroll">
        <div class="chat-column" aria-live="polite" aria-busy=${running !== null}>
          ${messages.length === 0 && html`<h1 class="chat-hello">${t("chat.hello")}</h1>`}
          ${messages.map((message, index) => html`<${MessageView} key=${index} message=${message} />`)}
          <div ref=${end}></div>
        </div>
      </div>
      <div class="chat-column">
        ${
          messages.length > 0 &&
          !running &&
          html`<${Button} kind="quiet" icon="plus" onClick=${() => setMessages([])}>${t("chat.new")}<//>`
        }
        <${Composer} running=${running !== null} onSend=${send} onStop=${() => running?.abort()} />
      </div>
    </div>
  `;
}

/** @param {{message: Message}} props */
function MessageView({ message }) {
  const { role, content, reasoning } = message;
  return html`
    <article class=${`message is-${role}`} aria-label=${t(role === "user" ? "chat.you" : "chat.model")}>
      ${reasoning && html`<details class="thoughts"><summary>${t("chat.thoughts")}</summary><p>${reasoning}</p></details>`}
      ${role === "user" ? html`<p class="message-text">${content}</p>` : html`<${Markdown} text=${content} />`}
    </article>
  `;
}
