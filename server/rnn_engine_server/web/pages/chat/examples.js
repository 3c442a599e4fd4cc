// The examples that the empty page offers.

import { Icon } from "../../components/icons.js";
import { chosenModel, isForVectors, models, persistentNames } from "../../server.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

const WEATHER = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather of a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);

const MOST_STATES = 2;

/**
 * @typedef {object} Example
 * @property {string} title
 * @property {string} text
 * @property {import("../../components/icons.js").IconName} icon
 * @property {object} [settings]
 * @property {boolean} [isExtra] A small screen has no room for it.
 */

/** @param {string[]} states @returns {Example[]} */
function examples(states) {
  const tuned = states.slice(0, MOST_STATES).map((state, place) => ({
    title: t("example.state", { state }),
    text: t("example.state_text"),
    icon: /** @type {const} */ ("states"),
    settings: { state },
    isExtra: place > 0,
  }));
  return [
    { title: t("example.plain"), text: t("example.plain_text"), icon: "chat" },
    ...tuned,
    { title: t("example.sum"), text: t("example.sum_text"), icon: "score" },
    { title: t("example.tool"), text: t("example.tool_text"), icon: "engine", settings: { tools: WEATHER } },
  ];
}

/** @param {{onChoose: (text: string, settings?: object) => void}} props */
export function Examples({ onChoose }) {
  useStore(models);
  useStore(chosenModel);
  const states = useStore(persistentNames);
  if (isForVectors()) return html`<${NoChat} />`;
  return html`
    <div class="examples">
      <h2>${t("chat.hello")}</h2>
      <p class="muted">${t("chat.hello_more")}</p>
      <div class="example-grid">
        ${examples(states).map(
          ({ title, text, icon, settings, isExtra }) => html`
            <button type="button" class=${isExtra ? "example is-extra" : "example"} key=${title} onClick=${() => onChoose(text, settings)}>
              <${Icon} name=${icon} />
              <span><b>${title}</b><br />${text}</span>
            </button>
          `,
        )}
      </div>
    </div>
  `;
}

/** What the empty page shows if the model can't chat. */
function NoChat() {
  return html`
    <div class="examples">
      <h2>${t("chat.no_chat")}</h2>
      <p class="muted">${t("chat.no_chat_more")} <a href="#/search">${t("nav.search")}</a></p>
    </div>
  `;
}
