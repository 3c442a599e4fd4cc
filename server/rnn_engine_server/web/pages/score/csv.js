// Tables as text: values between commas, semicolons or tabs, in quotes if necessary.

/** @typedef {{line: number, cells: string[]}} Row Its first line in the text, from 1, and its values. */

const SEPARATORS = [",", ";", "\t"];

/** An error in a table as a whole. */
export class TableError extends Error {
  /** @param {number} line */
  constructor(line) {
    super(`an open quote in line ${line}`);
    this.line = line;
  }
}

/**
 * Return the rows of a table that are not empty. Throws a TableError if a quote is not closed.
 * @param {string} text
 * @returns {Row[]}
 */
export function parseTable(text) {
  const separator = separatorOf(text);
  /** @type {Row[]} */
  const rows = [];
  let row = { line: 1, cells: /** @type {string[]} */ ([]) };
  let line = 1;
  let place = text.startsWith("\ufeff") ? 1 : 0;
  while (place <= text.length) {
    const cell = text[place] === '"' ? quoted(text, place, line) : bare(text, place, separator);
    row.cells.push(cell.value);
    line += cell.lines;
    place = cell.end;
    if (text[place] === separator) {
      place++;
      continue;
    }
    if (row.cells.some((value) => value.trim() !== "")) rows.push(row);
    if (place >= text.length) break;
    place += text.startsWith("\r\n", place) ? 2 : 1;
    line++;
    row = { line, cells: [] };
  }
  return rows;
}

/** @param {string} text @returns {string} The separator that the first line has most often outside of quotes. */
function separatorOf(text) {
  const first = (/^[^\n]*/.exec(text)?.[0] ?? "").replace(/"[^"]*"/g, "");
  const counts = SEPARATORS.map((separator) => first.split(separator).length);
  return SEPARATORS[counts.indexOf(Math.max(...counts))];
}

/** @param {string} text @param {number} start @param {string} separator */
function bare(text, start, separator) {
  let end = start;
  while (end < text.length && text[end] !== separator && text[end] !== "\n" && text[end] !== "\r") end++;
  return { value: text.slice(start, end), end, lines: 0 };
}

/** @param {string} text @param {number} start @param {number} line */
function quoted(text, start, line) {
  let value = "";
  let place = start + 1;
  for (;;) {
    const close = text.indexOf('"', place);
    if (close === -1) throw new TableError(line);
    value += text.slice(place, close);
    place = close + 1;
    if (text[place] !== '"') break;
    value += '"';
    place++;
  }
  const rest = /^[^,;\t\r\n]*/.exec(text.slice(place, place + 1000))?.[0] ?? "";
  return { value: value + rest, end: place + rest.length, lines: value.split("\n").length - 1 };
}

/**
 * Return rows as a table with commas.
 * @param {(string | number)[][]} rows
 */
export function formatTable(rows) {
  return rows.map((row) => `${row.map(formatCell).join(",")}\r\n`).join("");
}

/** @param {string | number} value */
function formatCell(value) {
  const text = String(value);
  return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
