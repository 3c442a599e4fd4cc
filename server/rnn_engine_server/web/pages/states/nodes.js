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
 * @property {number} shown How many children have rows, or would have them if this node were open.
 * @property {boolean} isOpen
 * @property {number} shared How many first characters of the text the sibling above has, too; 0 if they are few.
 */

const LEAST_SHARED = 24;

/**
 * Return the rows of the nodes that are not below a closed one. Nodes are given from the roots down.
 * @param {CacheNode[]} nodes
 * @param {ReadonlySet<string>} closed
 * @returns {Row[]}
 */
export function arrange(nodes, closed) {
  const children = Map.groupBy(nodes, ({ parent }) => parent);
  /** @type {Row[]} */
  const rows = [];
  /** @param {CacheNode} node @param {number} level @param {CacheNode | undefined} above */
  const add = (node, level, above) => {
    const below = children.get(node.id) ?? [];
    const isOpen = !closed.has(node.id);
    const shared = above?.root === node.root ? sharedLength(above.text, node.text) : 0;
    rows.push({ node, level, shown: below.length, isOpen, shared });
    if (isOpen) below.forEach((child, index) => add(child, level + 1, below[index - 1]));
  };
  const known = new Set(nodes.map(({ id }) => id));
  const tops = nodes.filter(({ parent }) => parent === null || !known.has(parent));
  for (const group of Map.groupBy(tops, ({ root }) => root).values()) {
    group.forEach((node, index) => add(node, 1, group[index - 1]));
  }
  return rows;
}

/**
 * Return how many characters two texts have in common from the start, up to the end of a line or else of a word; 0
 * if they are few.
 * @param {string} one
 * @param {string} two
 */
function sharedLength(one, two) {
  let length = 0;
  while (length < two.length && one[length] === two[length]) length++;
  if (length === two.length) return 0;
  const ends = ["\n", " "].map((space) => two.lastIndexOf(space, length - 1) + 1);
  return ends.find((end) => end >= LEAST_SHARED) ?? 0;
}

/**
 * Return the ids of nodes that are new or were hit since `before` (id -> hits); none if `before` is empty.
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
