// The error of a failed call, shown in place of its result.

import { ApiError } from "../api.js";
import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";

/** @param {{error: Error, adminOnly?: boolean}} props `adminOnly`: only keys with the scope admin may see this. */
export function Failure({ error, adminOnly }) {
  const forbidden = adminOnly && error instanceof ApiError && error.status === 403;
  return html`<p class="failure" role="alert">${forbidden ? t("error.admin_only") : error.message}</p>`;
}
