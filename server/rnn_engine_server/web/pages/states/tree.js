// The cache as a live tree: the kept prompts and answers, and the positions from which one may go on.

import { get } from "../../api.js";
import { Button } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatBytes } from "../../components/format.js";
import { usePolling } from "../../components/polling.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useMemo, useRef, useState } from "../../vendor/preact.js";
import { arrange, changedSince } from "./nodes.js";
import { PositionDialog } from "./position.js";
import { tierName } from "../../components/tiers.js";
import { TreeRows } from "./tree_rows.js";

const SECONDS = 2;
const FIRST_LIMIT = 200;
const MOST = 1000;

/** @typedef {import("./nodes.js").CacheNode} CacheNode */

export function TreePart() {
  const [filter, setFilter] = useState("");
  const [limit, setLimit] = useState(FIRST_LIMIT);
  const [closed, setClosed] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const [open, setOpen] = useState(/** @type {CacheNode | null} */ (null));
  const model = modelName();
  const { value, error, reload } = usePolling((signal) => load({ filter, limit, model }, signal), SECONDS, [
    filter,
    limit,
    model,
  ]);
  const rows = useMemo(() => arrange(value?.nodes ?? [], closed), [value, closed]);
  const hits = useRef(/** @type {ReadonlyMap<string, number>} */ (new Map()));
  const changed = useMemo(() => {
    const nodes = value?.nodes ?? [];
    const found = changedSince(hits.current, nodes);
    hits.current = new Map(nodes.map(({ id, hits }) => [id, hits]));
    return found;
  }, [value]);
  /** @param {string} id */
  const toggle = (id) => {
    const next = new Set(closed);
    if (!next.delete(id)) next.add(id);
    setClosed(next);
  };
  return html`
    <div>
      <div class="bar">
        <label class="grow">
          <span class="unseen">${t("states.filter")}</span>
          <input
            type="search"
            placeholder=${t("states.filter")}
            value=${filter}
            maxlength="200"
            onInput=${(/** @type {any} */ event) => setFilter(event.target.value)}
          />
        </label>
        ${value && html`<${Totals} value=${value} />`}
      </div>
      ${error && html`<${Failure} error=${error} adminOnly />`}
      ${value && rows.length === 0 && html`<p class="empty">${t(filter ? "states.no_match" : "states.nothing_kept")}</p>`}
      ${value && html`<${TreeRows} rows=${rows} names=${value.names} changed=${changed} onToggle=${toggle} onOpen=${setOpen} />`}
      ${value?.truncated && html`<${More} value=${value} limit=${limit} onMore=${() => setLimit(MOST)} />`}
      ${open && html`<${PositionDialog} node=${open} onClose=${() => setOpen(null)} onDropped=${reload} />`}
    </div>
  `;
}

/**
 * @param {{filter: string, limit: number, model: string}} query
 * @param {AbortSignal} signal
 */
async function load({ filter, limit, model }, signal) {
  const query = new URLSearchParams({ text: filter, limit: String(limit), model });
  const [tree, cache, states] = await Promise.all([
    get(`/v1/cache/tree?${query}`, { signal }),
    get(`/v1/cache?limit=0&model=${encodeURIComponent(model)}`, { signal }),
    get(`/v1/states?model=${encodeURIComponent(model)}`, { signal }),
  ]);
  /** @type {Map<string, string>} */
  const names = new Map(states.data.map((/** @type {any} */ state) => [state.digest, state.name]));
  return {
    nodes: /** @type {CacheNode[]} */ (tree.nodes),
    total: /** @type {number} */ (tree.total),
    truncated: /** @type {boolean} */ (tree.truncated),
    tiers: /** @type {{tier: string, used: number, capacity: number, copies: number}[]} */ (cache.tiers),
    names,
  };
}

/** @param {{value: Awaited<ReturnType<typeof load>>}} props */
function Totals({ value }) {
  return html`
    <ul class="facts">
      <li>${t("states.positions", { n: formatNumber(value.total) })}</li>
      ${value.tiers.map(
        ({ tier, used, capacity, copies }) => html`
          <li key=${tier} title=${t("states.tier_use", { n: formatNumber(copies), most: formatBytes(capacity) })}>
            <i class=${`tier is-${tier}`}></i>${tierName(tier)} ${formatBytes(used)}
          </li>
        `,
      )}
    </ul>
  `;
}

/** @param {{value: {nodes: CacheNode[], total: number}, limit: number, onMore: () => void}} props */
function More({ value, limit, onMore }) {
  return html`
    <p class="row muted">
      ${t("states.cut", { n: formatNumber(value.nodes.length), all: formatNumber(value.total) })}
      ${limit < MOST && html`<${Button} onClick=${onMore}>${t("states.more")}<//>`}
    </p>
  `;
}
