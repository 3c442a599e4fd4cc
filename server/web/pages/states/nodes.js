// The nodes of the cache's tree in the order of their rows.

/**
 * @typedef {object} CacheNode A position that the cache keeps, as /v1/cache/tree tells it.
 * @property {string} id
 * @property {string | null} parent
 * @property {string} root
 * @property {number} start
 * @property {number} length
 * @property {string} text
 * @property {boolean} whole
 * @property {string} kind
 * @property {Record<string, number>} bytes
 * @property {number} hits
 * @property {number} saves
 * @property {boolean} has_logits
 * @property {boolean} in_use
 * @property {number} idle_seconds
 * @property {boolean} match
 * @property {number} children
 */

/**
 * @typedef {object} Row
 * @property {CacheNode} node
 * @property {number} level From 1 on.
 * @property {number} shown How many children have rows, or would where this were open.
 * @property {boolean} isOpen
 */

/**
 * Return the rows of the nodes that no closed one hides. Nodes come from the roots down.
 * @param {CacheNode[]} nodes
 * @param {ReadonlySet<string>} closed
 * @returns {Row[]}
 */
export function arrange(nodes, closed) {
  const children = Map.groupBy(nodes, ({ parent }) => parent);
  /** @type {Row[]} */
  const rows = [];
  /** @param {CacheNode} node @param {number} level */
  const add = (node, level) => {
    const below = children.get(node.id) ?? [];
    const isOpen = !closed.has(node.id);
    rows.push({ node, level, shown: below.length, isOpen });
    if (isOpen) for (const child of below) add(child, level + 1);
  };
  const known = new Set(nodes.map(({ id }) => id));
  const tops = nodes.filter(({ parent }) => parent === null || !known.has(parent));
  for (const node of tops) add(node, 1);
  return rows;
}

/**
 * Return the ids of nodes that are new or were hit since `before` (id -> hits); none where there was nothing.
 * @param {ReadonlyMap<string, number>} before
 * @param {CacheNode[]} nodes
 * @returns {ReadonlySet<string>}
 */
export function changedSince(before, nodes) {
  if (before.size === 0) return new Set();
  return new Set(nodes.filter(({ id, hits }) => before.get(id) !== hits).map(({ id }) => id));
}

/**
 * Return a text in one line.
 * @param {string} text
 */
export const inOneLine = (text) => text.replace(/\s*\n\s*/g, " ⏎ ");
