// Markdown of a model or a person as elements. HTML in it is shown as text, and the result passes the sanitiser.

import { language, t } from "../strings/index.js";
import { useStore } from "../store.js";
import { Marked } from "../vendor/marked.js";
import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import DOMPurify from "../vendor/purify.js";
import { copyText } from "./copy_button.js";
import { notifyError } from "./notices.js";

const MOST_CHARACTERS = 100_000; // longer texts are shown plain, since each new token renders the whole text again

/** @param {string} text */
const escape = (text) =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "[x] " : "[ ] "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "a", "ul", "ol", "li"],
    ...["h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: ["href", "title", "class", "align", "start"],
  ALLOW_DATA_ATTR: false,
  ADD_URI_SAFE_ATTR: ["align", "start"], // else they, too, would have to be links
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
};

/**
 * Return markdown as elements that are safe to put into the page.
 * @param {string} text
 */
export function renderMarkdown(text) {
  const fragment = DOMPurify.sanitize(/** @type {string} */ (marked.parse(text)), {
    ...ALLOWED,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const block of fragment.querySelectorAll("pre")) addCodeHead(block);
  for (const table of fragment.querySelectorAll("table")) wrap(table, "table-box");
  return fragment;
}

/** @param {HTMLPreElement} block */
function addCodeHead(block) {
  const code = block.textContent ?? "";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = /language-(\S+)/.exec(block.firstElementChild?.className ?? "")?.[1] ?? "";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button is-quiet";
  button.textContent = t("copy.code");
  button.addEventListener("click", () => {
    copyText(code).then(() => (button.textContent = t("copy.done")), notifyError);
  });
  head.append(name, button);
  wrap(block, "code-box").prepend(head);
  block.tabIndex = 0;
}

/** @param {Element} element @param {string} name */
function wrap(element, name) {
  const box = document.createElement("div");
  box.className = name;
  element.replaceWith(box);
  box.append(element);
  return box;
}

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const chosen = useStore(language);
  const plain = text.length > MOST_CHARACTERS;
  useLayoutEffect(() => {
    element.current?.replaceChildren(plain ? text : renderMarkdown(text));
  }, [text, plain, chosen]);
  return html`<div class=${plain ? "markdown is-plain" : "markdown"} ref=${element}></div>`;
}
