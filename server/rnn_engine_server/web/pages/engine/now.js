// The present state of one model: its slots, its speed, its cache and its memory.

import { Failure } from "../../components/failure.js";
import { formatBytes, formatShare, formatSpan } from "../../components/format.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { CacheCounts } from "./cache.js";
import { TimeChart } from "./chart.js";
import { useEngineStatus } from "./live.js";
import { Memory } from "./memory.js";
import { Slots } from "./slots.js";

/** @typedef {import("./live.js").Sample} Sample */
/** @typedef {import("./live.js").ServerStatus} ServerStatus */

export function NowPart() {
  const { status, previous, samples, error } = useEngineStatus();
  if (status === undefined) return error ? html`<${Failure} error=${error} />` : html`<p class="empty">${t("engine.waiting")}</p>`;
  const engine = status.engines.find(({ model }) => model === modelName()) ?? status.engines[0];
  return html`
    <div>
      ${error && html`<${Failure} error=${error} />`}
      <${Summary} status=${status} previous=${previous} engine=${engine} />
      ${
        engine === undefined
          ? html`<p class="empty">${t("engine.none_loaded")}</p>`
          : html`<${EngineCards} engine=${engine} samples=${samples.get(engine.model) ?? []} />`
      }
    </div>
  `;
}

/** @param {{engine: import("./live.js").EngineStatus, samples: Sample[]}} props */
function EngineCards({ engine, samples }) {
  return html`
    <div class="cards">
      <${Slots} engine=${engine} />
      <${TimeChart}
        title=${t("engine.speed")}
        unit=${t("engine.per_second")}
        samples=${samples}
        lines=${[
          ["generated", t("engine.generated"), "--accent"],
          ["prefill", t("engine.prefill"), "--series-2"],
        ]}
      />
      <${TimeChart}
        title=${t("engine.step")}
        unit=${t("engine.ms")}
        samples=${samples}
        lines=${[
          ["device", t("engine.on_device"), "--accent"],
          ["host", t("engine.on_host"), "--series-2"],
        ]}
      />
      <${TimeChart}
        title=${t("engine.load")}
        unit=${t("engine.requests_unit")}
        samples=${samples}
        lines=${[
          ["busy", t("engine.busy"), "--accent"],
          ["queued", t("engine.queued"), "--series-2"],
        ]}
      />
      <${TimeChart}
        title=${t("engine.look_ups")}
        unit=${t("engine.per_second")}
        samples=${samples}
        lines=${[
          ["hits", t("engine.hits"), "--accent"],
          ["misses", t("engine.misses"), "--series-2"],
        ]}
      />
      <${CacheCounts} engine=${engine} />
      <${Memory} engine=${engine} />
    </div>
  `;
}

/**
 * @param {{
 *   status: ServerStatus, previous: ServerStatus | undefined,
 *   engine: import("./live.js").EngineStatus | undefined,
 * }} props
 */
function Summary({ status, previous, engine }) {
  const facts = [
    [t("engine.model"), engine?.model],
    [t("engine.device"), engine?.device],
    [t("engine.weights"), engine?.weights],
    [t("engine.up"), formatSpan(status.time - status.started)],
    [t("engine.requests"), formatNumber(status.requests)],
    [t("engine.connections"), formatNumber(status.connections)],
    [t("engine.process"), status.resident_bytes === null ? undefined : formatBytes(status.resident_bytes)],
    [t("engine.cpu"), cpuOf(status, previous)],
  ];
  return html`
    <dl class="facts-list summary">
      ${facts.map(([name, value]) => value && html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
  `;
}

/** @param {ServerStatus} status @param {ServerStatus | undefined} previous */
function cpuOf(status, previous) {
  if (status.cpu_seconds === null || previous === undefined || previous.cpu_seconds === null) return undefined;
  return formatShare(Math.max(status.cpu_seconds - previous.cpu_seconds, 0) / (status.time - previous.time));
}
