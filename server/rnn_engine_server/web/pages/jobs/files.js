// The files of jobs: uploaded ones and results.

import { remove, send } from "../../api.js";
import { IconButton } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatBytes, formatSpan, formatTime } from "../../components/format.js";
import { notify, notifyError } from "../../components/notices.js";
import { usePolling } from "../../components/polling.js";
import { saveFile } from "../../components/save_file.js";
import { listFiles } from "../../job_files.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

const SECONDS = 5;

/** @typedef {import("../../job_files.js").JobFile} JobFile */

export function FilesPart() {
  const { value, error, reload } = usePolling(listFiles, SECONDS, []);
  /** @param {JobFile} file */
  const drop = async ({ id, filename }) => {
    try {
      await remove(`/v1/files/${id}`);
      notify(t("jobs.file.deleted", { name: filename }));
    } catch (error) {
      notifyError(error);
    }
    reload();
  };
  /** @param {JobFile} file */
  const save = async ({ id, filename }) => {
    try {
      saveFile(filename, await (await send("GET", `/v1/files/${id}/content`)).blob());
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <div>
      ${error && html`<${Failure} error=${error} />`}
      ${value && value.length === 0 && html`<p class="empty">${t("jobs.noFiles")}</p>`}
      ${
        value &&
        value.length > 0 &&
        html`
          <div class="table-box">
            <table class="list">
              <thead>
                <tr>
                  <th scope="col">${t("jobs.file.name")}</th>
                  <th scope="col">${t("jobs.file.purpose")}</th>
                  <th scope="col" class="number">${t("jobs.file.size")}</th>
                  <th scope="col" class="is-minor">${t("jobs.file.created")}</th>
                  <th scope="col" class="is-minor">${t("jobs.file.expires")}</th>
                  <th scope="col"><span class="unseen">${t("jobs.file.actions")}</span></th>
                </tr>
              </thead>
              <tbody>
                ${value.map((file) => html`<${FileRow} key=${file.id} file=${file} onSave=${save} onDelete=${drop} />`)}
              </tbody>
            </table>
          </div>
        `
      }
    </div>
  `;
}

/** @param {{file: JobFile, onSave: (file: JobFile) => void, onDelete: (file: JobFile) => void}} props */
function FileRow({ file, onSave, onDelete }) {
  const left = file.expires_at === undefined ? null : file.expires_at - Date.now() / 1000;
  return html`
    <tr>
      <th scope="row">${file.filename}</th>
      <td>${PURPOSES[file.purpose]?.() ?? file.purpose}</td>
      <td class="number">${formatBytes(file.bytes)}</td>
      <td class="is-minor">${formatTime(file.created_at)}</td>
      <td class="is-minor">${left === null ? t("jobs.file.never") : t("jobs.file.in", { time: formatSpan(Math.max(left, 0)) })}</td>
      <td class="is-end">
        <div class="row is-tight is-end">
          <${IconButton} icon="download" label=${t("jobs.file.save", { name: file.filename })} onClick=${() => onSave(file)} />
          <${IconButton} icon="trash" label=${t("jobs.file.delete", { name: file.filename })} onClick=${() => onDelete(file)} />
        </div>
      </td>
    </tr>
  `;
}

/** @type {Record<string, () => string>} */
const PURPOSES = {
  batch: () => t("jobs.purpose.batch"),
  batch_output: () => t("jobs.purpose.batch_output"),
  "fine-tune": () => t("jobs.purpose.fine-tune"),
  "fine-tune-results": () => t("jobs.purpose.fine-tune-results"),
};
