// The frame around all pages: header, navigation, the page that is open, notices and the question for the API key.

import { KeyDialog } from "./components/key_dialog.js";
import { NoSuchPage } from "./components/no_such_page.js";
import { Notices } from "./components/notices.js";
import { Header } from "./header.js";
import { PAGES } from "./pages.js";
import { place } from "./router.js";
import { watchServer } from "./server.js";
import { useStore } from "./store.js";
import { showStyles } from "./styles.js";
import { language, t } from "./strings/index.js";
import { html, render, useEffect, useState } from "./vendor/preact.js";

function App() {
  const chosen = useStore(language);
  const { page, rest } = useStore(place);
  const entry = page === "" ? PAGES[0] : PAGES.find(({ name }) => name === page);
  const title = t(entry?.title ?? "missing.title");
  useEffect(() => {
    document.documentElement.lang = chosen;
    document.title = `${title} · rnn-engine`;
  }, [chosen, title]);
  return html`
    <a class="skip" href="#main">${t("shell.skip")}</a>
    <${Header} pages=${PAGES} current=${entry?.name} />
    <main id="main" tabindex="-1">
      ${
        entry
          ? html`<${LoadedPage} key=${entry.name} entry=${entry} rest=${rest} />`
          : html`<${NoSuchPage} address=${rest ? `${page}/${rest}` : page} />`
      }
    </main>
    <${Notices} />
    <${KeyDialog} />
  `;
}

/** @param {{entry: import("./pages.js").PageEntry, rest: string}} props */
function LoadedPage({ entry, rest }) {
  const [Page, setPage] = useState(/** @type {((props: any) => any) | null} */ (null));
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    Promise.all([entry.load(), showStyles(entry.styles)]).then(
      ([module]) => setPage(() => module.Page),
      () => setFailed(true),
    );
  }, [entry]);
  if (failed) return html`<p class="page-failed" role="alert">${t("error.unreachable")}</p>`;
  return Page === null ? null : html`<${Page} rest=${rest} />`;
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.replaceChildren();
render(html`<${App} />`, root);
watchServer();
