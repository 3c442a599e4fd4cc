// A cached position: its whole text, the facts of its state, and the ways to go on from it.

import { get, remove } from "../../api.js";
import { Button } from "../../components/button.js";
import { CopyButton } from "../../components/copy_button.js";
import { Dialog } from "../../components/dialog.js";
import { Failure } from "../../components/failure.js";
import { formatBytes, formatSpan } from "../../components/format.js";
import { notifyError } from "../../components/notices.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { GoOn } from "./go_on.js";
import { tierName } from "../../components/tiers.js";

const MOST_SHOWN = 100_000; // characters of a text

/** @typedef {import("./nodes.js").CacheNode} CacheNode */
/** @typedef {{text: string, tokens: number[]}} Position */

/** @param {{node: CacheNode, onClose: () => void, onDropped: () => void}} props */
export function PositionDialog({ node, onClose, onDropped }) {
  const [position, setPosition] = useState(/** @type {Position | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const path = `/v1/cache/positions/${node.id}?model=${encodeURIComponent(modelName())}`;
  useEffect(() => {
    const stopping = new AbortController();
    get(path, { signal: stopping.signal }).then(setPosition, (failure) => !stopping.signal.aborted && setError(failure));
    return () => stopping.abort();
  }, [path]);
  const drop = async () => {
    try {
      await remove(path);
      onDropped();
      onClose();
    } catch (failure) {
      notifyError(failure);
    }
  };
  return html`
    <${Dialog} title=${t("states.position")} onClose=${onClose}>
      <div class="stack position">
        ${error && html`<${Failure} error=${error} adminOnly />`}
        ${position && html`<${PositionText} text=${position.text} />`}
        <${Facts} node=${node} />
        ${position && html`<${GoOn} position=${position} node=${node} />`}
        <div class="row">
          <${Button} kind="danger" icon="trash" disabled=${node.in_use} onClick=${drop}>${t("states.drop")}<//>
          <span class="muted">${t(node.in_use ? "states.drop_in_use" : "states.drop_hint")}</span>
        </div>
      </div>
    <//>
  `;
}

/** @param {{text: string}} props */
function PositionText({ text }) {
  return html`
    <div class="text-box">
      <pre tabindex="0" aria-label=${t("states.text")}>${text.length > MOST_SHOWN ? `…${text.slice(-MOST_SHOWN)}` : text}</pre>
      <${CopyButton} text=${text} />
    </div>
  `;
}

/** @param {{node: CacheNode}} props */
function Facts({ node }) {
  const tiers = Object.entries(node.bytes).map(([tier, size]) => `${tierName(tier)} ${formatBytes(size)}`);
  const facts = [
    [t("states.length"), formatNumber(node.length)],
    [t("states.kind"), kindName(node.kind)],
    [t("states.kept_in"), tiers.join(", ") || t("states.gone")],
    [t("states.hit_count"), formatNumber(node.hits)],
    [t("states.saves"), formatNumber(node.saves)],
    [t("states.idle"), formatSpan(node.idle_seconds)],
  ];
  return html`
    <dl class="facts-list">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  `;
}

/** @param {string} kind */
function kindName(kind) {
  switch (kind) {
    case "prompt_end":
    case "turn":
    case "branch":
    case "mark":
    case "generation_end":
    case "waypoint":
      return t(`states.kind.${kind}`);
    default:
      return kind;
  }
}
