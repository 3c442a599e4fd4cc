// The content of a message: text, thoughts, calls of tools, or a sign that it is still to come.

import { Markdown } from "../../components/markdown.js";
import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { ToolCalls } from "./tool_calls.js";

/** @typedef {import("./tree.js").Message} Message */

/** @param {{message: Message, isRunning: boolean}} props */
export function MessageBody({ message, isRunning }) {
  const { role, content, reasoning, calls = [], progress } = message;
  if (role !== "assistant") return html`<p class="message-text">${content}</p>`;
  const isWaiting = isRunning && !content && !reasoning && calls.length === 0;
  return html`
    ${
      reasoning &&
      html`
        <details class="thoughts" open=${isRunning && !content}>
          <summary>${t("chat.thoughts")}</summary>
          <p>${reasoning}</p>
        </details>
      `
    }
    ${isWaiting && html`<${Waiting} progress=${progress} />`}
    <${Markdown} text=${content} />
    <${ToolCalls} calls=${calls} />
  `;
}

/** @param {{progress: Message["progress"]}} props */
function Waiting({ progress }) {
  return html`
    <span class="waiting">
      <i></i><i></i><i></i>
      ${
        progress &&
        progress.done < progress.total &&
        t("chat.reading", { done: formatNumber(progress.done), total: formatNumber(progress.total) })
      }
    </span>
  `;
}
