// The header: the name, the pages, the model, the state of the connection, the HTTP API, language and colours.

import { IconButton } from "./components/button.js";
import { Icon } from "./components/icons.js";
import { chosenModel, connection, modelName, models } from "./server.js";
import { settingStore } from "./storage.js";
import { useStore } from "./store.js";
import { LANGUAGES, language, t } from "./strings/index.js";
import { html, useLayoutEffect } from "./vendor/preact.js";

/** @typedef {"auto" | "light" | "dark"} Theme */

/** @type {Theme[]} */
const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = /** @type {const} */ ({ auto: "contrast", light: "sun", dark: "moon" });

const theme = settingStore("theme", /** @type {Theme} */ ("auto"));

/** @param {{pages: import("./pages.js").PageEntry[], current?: string}} props `current`: the open page's name. */
export function Header({ pages, current }) {
  return html`
    <header class="header">
      <a class="brand" href="#/chat"><img src="web/icon.svg" alt="" width="20" height="20" />rnn-engine</a>
      <nav class="nav" aria-label=${t("shell.pages")}>
        ${pages.map(
          ({ name, title, icon }) => html`
            <a key=${name} href=${`#/${name}`} aria-current=${name === current ? "page" : undefined}>
              <${Icon} name=${icon} /><span>${t(title)}</span>
            </a>
          `,
        )}
      </nav>
      <div class="header-end">
        <${ModelChoice} />
        <${ConnectionState} />
        <a class="button is-quiet is-icon" href="docs" target="_blank" aria-label=${t("shell.api")} title=${t("shell.api")}>
          <${Icon} name="code" />
        </a>
        <${LanguageSwitch} />
        <${ThemeSwitch} />
      </div>
    </header>
  `;
}

function ModelChoice() {
  const all = useStore(models);
  useStore(chosenModel);
  if (all.length < 2) return html`<span class="model-name" title=${modelName()}>${modelName()}</span>`;
  return html`
    <select
      class="model-name"
      aria-label=${t("shell.model")}
      value=${modelName()}
      onChange=${(/** @type {any} */ event) => chosenModel.set(event.target.value)}
    >
      ${all.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
    </select>
  `;
}

function ConnectionState() {
  const state = useStore(connection);
  const text = t(`connection.${state}`);
  return html`
    <span class=${`connection is-${state}`} role="status" title=${text}><i></i><span>${text}</span></span>
  `;
}

/** 中 is drawn as an icon, since not every computer has a font with it. */
function LanguageSwitch() {
  const other = useStore(language) === "en" ? "zh" : "en";
  const name = LANGUAGES[other];
  return html`
    <button
      class="button is-quiet is-icon language"
      lang=${other}
      aria-label=${name}
      title=${name}
      onClick=${() => language.set(other)}
    >
      ${other === "zh" ? html`<${Icon} name="chinese" />` : "EN"}
    </button>
  `;
}

function ThemeSwitch() {
  const chosen = useStore(theme);
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = chosen;
  }, [chosen]);
  const next = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  return html`
    <${IconButton} icon=${THEME_ICONS[chosen]} label=${t(`theme.${chosen}`)} onClick=${() => theme.set(next)} />
  `;
}
