// The page Chat: the list of conversations, the one that is open, and its settings.

import { notify, notifyError } from "../../components/notices.js";
import { SidePanel, useMedia } from "../../components/side_panel.js";
import { go } from "../../router.js";
import { loadStates, models } from "../../server.js";
import { settingStore } from "../../storage.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ConversationView } from "./conversation_view.js";
import { changeConversation, conversations, loadConversations, loaded, putConversation } from "./conversations.js";
import { ConversationList } from "./list.js";
import { SettingsPanel } from "./settings_panel.js";
import { newConversation } from "./tree.js";

const settingsOpen = settingStore("chat-settings-open", false);

/** @param {{rest: string}} props `rest`: the conversation's id. */
export function Page({ rest }) {
  const all = useStore(conversations);
  const isLoaded = useStore(loaded);
  const hasModels = useStore(models).length > 0;
  const hasSettings = useStore(settingsOpen);
  const [draft, setDraft] = useState(() => newConversation());
  const [drawer, setDrawer] = useState(/** @type {"list" | "settings" | null} */ (null));
  const wideList = useMedia("(width >= 900px)");
  const wideSettings = useMedia("(width >= 1200px)");
  useEffect(() => void loadConversations(), []);
  useEffect(() => void (hasModels && loadStates().catch(notifyError)), [hasModels]);
  useEffect(() => setDrawer(null), [rest]);
  useEffect(() => {
    if (!isLoaded || rest === "" || all.has(rest)) return;
    notify(t("chat.not_here"));
    go("chat");
  }, [isLoaded, rest]);
  if (!isLoaded) return null;
  const current = all.get(rest) ?? all.get(draft.id) ?? draft;
  /** @param {(conversation: typeof current) => typeof current} change */
  const change = (change) => {
    if (!all.has(current.id)) putConversation(current);
    changeConversation(current.id, change);
  };
  const startNew = () => {
    setDraft(newConversation());
    setDrawer(null);
    go("chat");
  };
  return html`
    <div class="chat">
      ${
        (wideList || drawer === "list") &&
        html`
          <${SidePanel} title=${t("chat.conversations")} side="left" wide=${wideList} onClose=${() => setDrawer(null)}>
            <${ConversationList} current=${current.id} onNew=${startNew} />
          <//>
        `
      }
      <${ConversationView}
        key=${current.id}
        conversation=${current}
        change=${change}
        onList=${wideList ? undefined : () => setDrawer("list")}
        onSettings=${() => (wideSettings ? settingsOpen.set(!hasSettings) : setDrawer("settings"))}
      />
      ${
        (wideSettings ? hasSettings : drawer === "settings") &&
        html`
          <${SidePanel} title=${t("settings.title")} side="right" wide=${wideSettings} onClose=${() => setDrawer(null)}>
            <${SettingsPanel} conversation=${current} change=${change} />
          <//>
        `
      }
    </div>
  `;
}
