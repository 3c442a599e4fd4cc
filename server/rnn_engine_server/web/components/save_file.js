// Saving what the page has as a file of the person.

/**
 * Let the browser save a file.
 * @param {string} name
 * @param {Blob | string} content
 * @param {string} [type] Its media type.
 */
export function saveFile(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
