// The ways to go on from a cached position, without running its tokens again.

import { post } from "../../api.js";
import { Button } from "../../components/button.js";
import { notify, notifyError } from "../../components/notices.js";
import { t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { beginChat, beginText } from "./begin.js";
import { readChat } from "./chat_text.js";
import { startOf, statesPath } from "./state_calls.js";

/** @param {{position: {text: string, tokens: number[]}, node: import("./nodes.js").CacheNode}} props */
export function GoOn({ position, node }) {
  const chat = readChat(position.text);
  /** @param {(state: string) => Promise<void>} begin */
  const begin = async (begin) => {
    try {
      await begin(await startOf(node.root));
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <div class="stack">
      <div class="row">
        ${
          chat &&
          html`
            <${Button} kind="main" icon="chat" onClick=${() => begin((state) => beginChat(chat, state))}>
              ${t("states.go_on_chat")}
            <//>
          `
        }
        <${Button}
          kind=${chat ? "plain" : "main"}
          icon="write"
          onClick=${() => begin((state) => beginText(position.text, state))}
        >
          ${t("states.go_on_write")}
        <//>
      </div>
      <${NameState} tokens=${position.tokens} root=${node.root} />
    </div>
  `;
}

/** @param {{tokens: number[], root: string}} props */
function NameState({ tokens, root }) {
  const [name, setName] = useState("");
  /** @param {Event} event */
  const keep = async (event) => {
    event.preventDefault();
    try {
      await post(statesPath(), { name, prompt: tokens, state: await startOf(root) });
      notify(t("states.kept_as", { name }));
      setName("");
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <form class="row" onSubmit=${keep}>
      <input
        class="grow"
        aria-label=${t("states.new_name")}
        placeholder=${t("states.new_name")}
        value=${name}
        required
        onInput=${(/** @type {any} */ event) => setName(event.target.value)}
      />
      <${Button} type="submit" icon="plus">${t("states.keep_as")}<//>
    </form>
  `;
}
