// The calls of tools in an answer, and the fields for their results.

import { Button } from "../../components/button.js";
import { TextField } from "../../components/fields.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";

/** @typedef {import("./tree.js").ToolCall} ToolCall */

/** @param {{calls: ToolCall[]}} props */
export function ToolCalls({ calls }) {
  return calls.map(
    (call) => html`
      <div class="code-box tool-call" key=${call.id}>
        <div class="code-head"><span>${t("chat.calls", { name: call.name })}</span></div>
        <pre tabindex="0">${indented(call.arguments)}</pre>
      </div>
    `,
  );
}

/** @param {string} text */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not yet whole JSON
  }
}

/**
 * @param {{
 *   calls: ToolCall[],
 *   onSend: (results: {role: "tool", content: string, callId: string}[]) => void,
 * }} props
 */
export function CallResults({ calls, onSend }) {
  const [results, setResults] = useState(() => calls.map(() => ""));
  /** @param {Event} event */
  const send = (event) => {
    event.preventDefault();
    onSend(calls.map(({ id }, index) => ({ role: "tool", content: results[index], callId: id })));
  };
  return html`
    <form class="stack" onSubmit=${send}>
      ${calls.map(
        ({ id, name }, index) => html`
          <${TextField}
            key=${id}
            label=${t("chat.result_of", { name })}
            rows=${2}
            value=${results[index]}
            onChange=${(/** @type {string} */ text) => setResults(results.with(index, text))}
          />
        `,
      )}
      <div class="row is-end">
        <${Button} kind="main" type="submit" disabled=${results.some((text) => !text.trim())}>
          ${t("chat.send_results")}
        <//>
      </div>
    </form>
  `;
}
