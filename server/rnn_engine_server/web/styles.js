// The style files of the page that is open. Those of other pages are switched off, so that names in them never meet.

/** @type {Map<string, {link: HTMLLinkElement, loaded: Promise<void>}>} */
const known = new Map();

/**
 * Switch to the files of a page, and wait until they are there.
 * @param {string[]} paths Below /web/.
 */
export async function showStyles(paths) {
  for (const path of paths) if (!known.has(path)) known.set(path, load(path));
  for (const [path, { link }] of known) link.disabled = !paths.includes(path);
  await Promise.all(paths.map((path) => known.get(path)?.loaded));
}

/** @param {string} path */
function load(path) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL(path, import.meta.url).href;
  /** @type {Promise<void>} */
  const loaded = new Promise((resolve, reject) => {
    link.onload = () => resolve();
    link.onerror = () => reject(new Error(path));
  });
  document.head.append(link);
  return { link, loaded };
}
