// The tree of texts made by generating and forking. Each one names its parent.

import { EMPTY } from "./text.js";

/** @typedef {import("./text.js").Text} Text */

/**
 * @typedef {object} Branch
 * @property {number} id
 * @property {number | null} parent
 * @property {"start" | "generated" | "forked"} kind
 * @property {number} from Where in its text the new part begins.
 * @property {Text} text
 */

/**
 * @typedef {object} Branches
 * @property {Branch[]} all Parents before their children.
 * @property {number} current The id of the one that is shown.
 * @property {number} count How many there have ever been.
 */

const MOST = 40;
const MOST_CHARACTERS = 8_000_000; // of all texts together

/** @type {Branches} */
export const START = { all: [{ id: 0, parent: null, kind: "start", from: 0, text: EMPTY }], current: 0, count: 1 };

/**
 * @param {Branches} branches
 * @returns {Branch}
 */
export function currentBranch(branches) {
  return branches.all.find(({ id }) => id === branches.current) ?? branches.all[0];
}

/**
 * Return the branches with another text in one of them.
 * @param {Branches} branches
 * @param {Text} text
 * @param {number} [id] By default the current one.
 * @returns {Branches}
 */
export function withText(branches, text, id = branches.current) {
  const all = branches.all.map((branch) => (branch.id === id ? { ...branch, text } : branch));
  return { ...branches, all };
}

/**
 * Return the branches with one more, made from the current one, which is shown from now on.
 * @param {Branches} branches
 * @param {Branch["kind"]} kind
 * @param {number} from
 * @param {Text} text
 * @returns {Branches}
 */
export function added(branches, kind, from, text) {
  const id = branches.count;
  const parent = branches.current;
  return trimmed({ all: [...branches.all, { id, parent, kind, from, text }], current: id, count: id + 1 });
}

/**
 * Return the branches with the one before the current one shown.
 * @param {Branches} branches
 * @returns {Branches}
 */
export function undone(branches) {
  const { parent } = currentBranch(branches);
  return parent === null ? branches : { ...branches, current: parent };
}

/**
 * Return the branches without one. Its children become those of its parent.
 * @param {Branches} branches
 * @param {number} id
 * @returns {Branches}
 */
export function removed(branches, id) {
  const gone = branches.all.find((branch) => branch.id === id);
  if (gone === undefined || branches.all.length === 1) return branches;
  const heir = gone.parent ?? branches.all.find((branch) => branch.parent === id)?.id ?? null;
  const all = branches.all
    .filter((branch) => branch !== gone)
    .map((branch) => (branch.parent === id ? { ...branch, parent: branch.id === heir ? null : heir } : branch));
  const first = all[0];
  return { ...branches, all, current: branches.current === id ? (heir ?? first.id) : branches.current };
}

/**
 * Return how many branches lead to one.
 * @param {Branches} branches
 * @param {Branch} branch
 */
export function depthOf(branches, branch) {
  let depth = 0;
  let { parent } = branch;
  while (parent !== null) {
    const above = parent;
    parent = branches.all.find(({ id }) => id === above)?.parent ?? null;
    depth++;
  }
  return depth;
}

/** @param {Branches} branches @returns {Branches} Without the oldest, if there are too many. */
function trimmed(branches) {
  let kept = branches;
  const size = () => kept.all.reduce((sum, { text }) => sum + text.content.length, 0);
  while (kept.all.length > 1 && (kept.all.length > MOST || size() > MOST_CHARACTERS)) {
    const oldest = kept.all.find(({ id }) => id !== kept.current);
    if (oldest === undefined) break;
    kept = removed(kept, oldest.id);
  }
  return kept;
}
