// The tree of texts: each one below the text that it was made from, from the point at which they part.

import { IconButton } from "../../components/button.js";
import { Icon } from "../../components/icons.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { depthOf } from "./branches.js";
import { branches, drop, show } from "./session.js";

const SHOWN = 60; // characters
const DEEPEST = 6; // steps of indentation
const ICONS = /** @type {const} */ ({ start: "edit", generated: "write", forked: "fork" });

export function BranchList() {
  const all = useStore(branches);
  return html`
    <ol class="branches" aria-label=${t("write.branches")}>
      ${inOrder(all).map((branch) => html`<${Row} key=${branch.id} branch=${branch} all=${all} />`)}
    </ol>
  `;
}

/** @param {{branch: import("./branches.js").Branch, all: import("./branches.js").Branches}} props */
function Row({ branch, all }) {
  const { id, kind, from, text } = branch;
  const part = text.content.slice(from, from + SHOWN).trim() || text.content.slice(0, SHOWN).trim();
  const name = part || t("write.empty");
  return html`
    <li style=${{ paddingLeft: `${12 * Math.min(depthOf(all, branch), DEEPEST)}px` }}>
      <button
        type="button"
        class="branch"
        aria-current=${id === all.current ? "true" : undefined}
        onClick=${() => show(id)}
        title=${t(`write.branch.${kind}`)}
      >
        <${Icon} name=${ICONS[kind]} /><span class="unseen">${t(`write.branch.${kind}`)}</span>
        <span class="branch-text">${name}</span>
      </button>
      ${
        all.all.length > 1 &&
        html`<${IconButton} icon="close" label=${t("write.drop", { name: name.slice(0, 20) })} onClick=${() => drop(id)} />`
      }
    </li>
  `;
}

/**
 * Return the branches so that each one follows its parent.
 * @param {import("./branches.js").Branches} branches
 */
function inOrder({ all }) {
  /** @type {import("./branches.js").Branch[]} */
  const ordered = [];
  const waiting = all.filter(({ parent }) => parent === null).reverse();
  for (let branch = waiting.pop(); branch !== undefined; branch = waiting.pop()) {
    const { id } = branch;
    ordered.push(branch);
    waiting.push(...all.filter(({ parent }) => parent === id).reverse());
  }
  return ordered;
}
