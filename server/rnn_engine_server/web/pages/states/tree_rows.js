// The rows of the tree: one tree for each state that prompts started from.

import { formatSpan } from "../../components/format.js";
import { Icon } from "../../components/icons.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { inOneLine } from "./nodes.js";
import { Tiers } from "../../components/tiers.js";

/** @typedef {import("./nodes.js").Row} Row */
/** @typedef {import("./nodes.js").CacheNode} CacheNode */

/**
 * @typedef {object} Actions
 * @property {(id: string) => void} onToggle
 * @property {(node: CacheNode) => void} onOpen
 */

/**
 * @param {{rows: Row[], names: Map<string, string>, changed: ReadonlySet<string>} & Actions} props
 *   `names`: of states, by digest; `changed`: ids of nodes that are new or were just hit.
 */
export function TreeRows({ rows, names, changed, ...actions }) {
  const groups = [...Map.groupBy(rows, ({ node }) => node.root)];
  return html`
    <div class="trees">
      ${groups.map(
        ([root, group]) => html`
          <section key=${root} class="tree-root">
            <h2><${Icon} name="states" />${rootName(root, names)}</h2>
            <${Tree} label=${rootName(root, names)} rows=${group} changed=${changed} ...${actions} />
          </section>
        `,
      )}
    </div>
  `;
}

/**
 * Return words for the state that prompts started from, and for their owner.
 * @param {string} root
 * @param {Map<string, string>} names
 */
export function rootName(root, names) {
  const [digest, owner] = root.split("/");
  const name = names.get(digest);
  const start =
    digest === "none"
      ? t("states.from_nothing")
      : t("states.from_state", { name: name ?? t("states.unnamed", { digest: digest.slice(0, 8) }) });
  return owner ? `${start} · ${t("states.of_key", { name: owner })}` : start;
}

/** @param {{label: string, rows: Row[], changed: ReadonlySet<string>} & Actions} props */
function Tree({ label, rows, changed, onToggle, onOpen }) {
  const [focused, setFocused] = useState("");
  const current = rows.some(({ node }) => node.id === focused) ? focused : rows[0].node.id;
  /** @param {KeyboardEvent} event @param {number} index */
  const onKey = (event, index) => {
    const { node, isOpen, shown } = rows[index];
    const step = keyStep(event.key, rows, index);
    if (step !== undefined) focusRow(event, step);
    else if (event.key === "ArrowRight" && shown > 0) isOpen ? focusRow(event, index + 1) : onToggle(node.id);
    else if (event.key === "ArrowLeft" && shown > 0 && isOpen) onToggle(node.id);
    else if (event.key === "Enter" || event.key === " ") onOpen(node);
    else return;
    event.preventDefault();
  };
  return html`
    <div class="tree" role="tree" aria-label=${label}>
      ${rows.map(
        (row, index) => html`
          <${TreeRow}
            key=${row.node.id}
            row=${row}
            changed=${changed.has(row.node.id)}
            isCurrent=${row.node.id === current}
            onKey=${(/** @type {KeyboardEvent} */ event) => onKey(event, index)}
            onFocus=${() => setFocused(row.node.id)}
            onToggle=${() => onToggle(row.node.id)}
            onOpen=${() => onOpen(row.node)}
          />
        `,
      )}
    </div>
  `;
}

/** @param {string} key @param {Row[]} rows @param {number} index */
function keyStep(key, rows, index) {
  if (key === "ArrowDown") return Math.min(index + 1, rows.length - 1);
  if (key === "ArrowUp") return Math.max(index - 1, 0);
  if (key === "Home") return 0;
  if (key === "End") return rows.length - 1;
  const { node, isOpen, shown } = rows[index];
  if (key === "ArrowLeft" && !(shown > 0 && isOpen)) return rows.findIndex((row) => row.node.id === node.parent);
  return undefined;
}

/** @param {KeyboardEvent} event @param {number} index */
function focusRow(event, index) {
  const tree = /** @type {HTMLElement} */ (event.currentTarget).parentElement;
  const row = tree?.children[index];
  if (row instanceof HTMLElement) row.focus();
}

/**
 * @param {{
 *   row: Row, changed: boolean, isCurrent: boolean, onKey: (event: KeyboardEvent) => void, onFocus: () => void,
 *   onToggle: () => void, onOpen: () => void,
 * }} props
 */
function TreeRow({ row, changed, isCurrent, onKey, onFocus, onToggle, onOpen }) {
  const { node, level, shown, isOpen, shared } = row;
  /** @param {MouseEvent} event */
  const toggle = (event) => {
    event.stopPropagation();
    onToggle();
  };
  return html`
    <div
      role="treeitem"
      class=${`tree-row${changed ? " is-changed" : ""}${node.match ? "" : " is-context"}`}
      style=${{ "--level": level - 1 }}
      aria-level=${level}
      aria-expanded=${shown > 0 ? isOpen : undefined}
      tabindex=${isCurrent ? 0 : -1}
      onKeyDown=${onKey}
      onFocus=${onFocus}
      onClick=${onOpen}
    >
      <span class="tree-label">
        <span class="tree-toggle" aria-hidden="true" onClick=${shown > 0 ? toggle : undefined}>
          ${shown > 0 && html`<${Icon} name=${isOpen ? "down" : "right"} />`}
        </span>
        <span class="tree-text">
          ${shared > 0 && html`<span class="muted" aria-hidden="true">… </span><span class="unseen">${node.text.slice(0, shared)}</span>`}
          ${inOneLine(node.text.slice(shared))}${node.whole ? "" : "…"}
        </span>
        ${node.in_use && html`<b class="badge">${t("states.in_use")}</b>`}
        ${!isOpen && shown > 0 && html`<span class="tree-fact">${t("states.below", { n: shown })}</span>`}
      </span>
      <span class="tree-fact"><${Tiers} bytes=${node.bytes} /></span>
      <span class="tree-fact number" title=${t("states.hits_hint")}>${t("states.hits", { n: formatNumber(node.hits) })}</span>
      <span class="tree-fact number" title=${t("states.tokens_hint")}>
        ${t("states.tokens", { n: formatNumber(node.length) })}
      </span>
      <span class="tree-fact number" title=${t("states.idle_hint")}>${formatSpan(node.idle_seconds)}</span>
    </div>
  `;
}
