/* The page: the conversation that is shown, the answers that run, and the state of the server.
 *
 *   main.js      this file: sends, retries, saves     store.js     conversations in the browser
 *   composer.js  message field and attached files     list.js      the list of conversations
 *   log.js       messages and their buttons           settings.js  recipe, numbers, theme, key
 *   markdown.js  Markdown as elements                 cache.js     what the session's cache holds
 *   api.js       requests and event streams           dom.js       elements and numbers
 */
import {$, el, count, showText} from "./dom.js";
import {ServerError, getModels, getSlots, streamAnswer} from "./api.js";
import {ConflictError, Store, newId} from "./store.js";
import {hasMarkdown} from "./markdown.js";
import {Log, setProgress, speak, toast} from "./log.js";
import {Composer, contentOf} from "./composer.js";
import {List} from "./list.js";
import {checkSettings, defaultSettings, findRecipe, listenSettings} from "./settings.js";
import {readSettings, requestFields, setModels, setRecipes, writeSettings} from "./settings.js";
import {drawAll, drawSlot, findSlot} from "./cache.js";

const SAVE_MS = 3000; /* a running answer is saved this often */

const store = await Store.open();
const server = {
  models: [], /* all of them, and the one that is chosen */
  model: null,
  reachable: true,
  n_failed: 0,
  timer: 0
};
const runs = new Map();   /* conversation -> {message, abort, tokens, done}: answers that run */
const saving = new Map(); /* conversation -> the end of its saves that have not finished */
let chat = null;          /* the conversation that is shown */

/* ---- conversations ---- */

const newChat = () => ({
  id: newId(),
  version: 0,
  title: "",
  created: Date.now(),
  changed: Date.now(),
  settings: {...readSettings()},
  messages: []
});
const titleOf = message => (
  (message.text || message.files?.[0]?.name || "").split("\n").find(line => line.trim()) ||
  "Conversation").trim().slice(0, 60);
const lastTokens = messages => messages.findLast(message => message.tokens)?.tokens || null;

/* What a running or finished answer of the conversation occupies. */
const tokensNow = () => runs.get(chat)?.tokens || lastTokens(chat.messages);

const saveOnce = async conversation => {
  if (!conversation.messages.length) return;
  try {
    await store.save(conversation);
  } catch (error) {
    if (!(error instanceof ConflictError)) {
      toast(`Not saved: ${error.message}`);
      return;
    }
    conversation.id = newId();
    conversation.version = 0;
    conversation.title += " (copy)";
    await store.save(conversation).catch(failure => toast(`Not saved: ${failure.message}`));
    if (conversation === chat) history.replaceState(null, "", "#" + chat.id);
    toast("Another tab changed this conversation. This tab continues a copy.");
  }
};

/* Save after the saves before. */
const save = conversation => {
  conversation.changed = Date.now();
  const done =
    (saving.get(conversation) || Promise.resolve()).then(() => saveOnce(conversation)).then(() => {
      if (saving.get(conversation) === done) saving.delete(conversation);
      return list.draw(chat.id);
    });
  saving.set(conversation, done);
  return done;
};

const showChat = next => {
  chat = next;
  document.body.classList.remove("list", "panel");
  showPanels();
  writeSettings(chat.settings);
  if (server.models.length > 1) showModel();
  drawSlot(null);
  for (const message of chat.messages)
    if (message.cut === "interrupted" && !runs.has(chat))
      message.note ||= "Not finished: the page was closed, or another tab answers.";
  log.show(chat.messages);
  composer.openDraft(chat.version || chat.messages.length ? chat.id : "new");
  showState();
  list.draw(chat.id);
  poll();
};

/* The database does not finish a save while the page closes. So answers that run, or are being
 * saved, are left in the local storage, and taken when their conversation is loaded. */
const leaveUnfinished = () => {
  for (const {id, messages} of new Set([...runs.keys(), ...saving.keys()])) {
    const message = messages.at(-1);
    if (message?.role !== "assistant") continue;
    try {
      localStorage.setItem("lowkey-unfinished-" + id, message.text);
    } catch { /* longer than the browser permits: the last save counts */
    }
  }
};
const loadChat = async id => {
  const conversation = await store.load(id), name = "lowkey-unfinished-" + id;
  const message = conversation?.messages.at(-1), text = localStorage.getItem(name);
  localStorage.removeItem(name);
  if (message?.cut === "interrupted" && text?.startsWith(message.text)) message.text = text;
  return conversation;
};

/* Show the conversation of the address; a new one if there is none. */
const openFromAddress = async () => {
  const id = location.hash.slice(1);
  if (id && id === chat?.id) return;
  const used = [...runs.keys(), ...saving.keys()].find(conversation => conversation.id === id);
  const next = used || (id && await loadChat(id));
  if (location.hash.slice(1) !== id) return; /* another one was opened meanwhile */
  if (!next) writeSettings(defaultSettings());
  showChat(next || newChat());
};
const openChat = id => {
  if (id && id === chat.id)
    showChat(chat);
  else if (id)
    location.hash = id;
  else {
    history.pushState(null, "", location.pathname + location.search);
    showChat(newChat());
    $("message").focus();
  }
};

/* Everything on the page that depends on whether an answer runs. */
const showState = () => {
  const busy = runs.has(chat);
  composer.setBusy(busy);
  composer.showCount();
  log.setBusy(busy);
  if (!busy) setProgress(1);
  document.title = `${chat.title || server.model?.id || "Chat"} – lowkey`;
  showRecipeChange();
};
const showRecipeChange = () => {
  const tokens = lastTokens(chat.messages),
        changed = tokens && tokens.kv !== $("kv").value && findRecipe($("kv").value);
  showText($("kvchange"),
    changed ?
      `All ${
        count(tokens.total)} tokens of this conversation will be read again with this recipe.` :
      "");
};

/* ---- answers ---- */

/* Messages as the server takes them. Neighbors of one role, which a failed answer leaves, are
 * joined. */
const historyOf = (conversation, last) => {
  const out = [], system = conversation.settings.system?.trim();
  if (system) out.push({role: "system", content: system});
  for (const message of conversation.messages.slice(0, conversation.messages.indexOf(last) + 1)) {
    const content = contentOf(message);
    if (!content) continue;
    if (out.at(-1)?.role === message.role)
      out.at(-1).content += "\n\n" + content;
    else
      out.push({role: message.role, content});
  }
  return out;
};

const noteOf = ({timings, cache}) => {
  const from = {store: " from disk", memory: " from memory"}[cache?.prefix] || "";
  return `${count(timings.prompt_n + timings.cache_n)} prompt tokens: ${
           count(timings.cache_n)} reused${timings.cache_n ? from : ""}, ` +
    `${count(timings.prompt_n)} read. ${count(timings.predicted_n)} generated at ${
      timings.predicted_per_second.toFixed(1)} tokens/s.`;
};
const CUTS = {
  length: " Cut at the limit of tokens.",
  stopped: "Stopped."
};

/* Take one event of a stream into the message. */
const applyEvent = (conversation, run, event) => {
  const {message} = run;
  if (event.progress) {
    const {total, processed, cache} = event.progress;
    run.tokens = {kv: message.kv, prompt: total, total};
    if (conversation === chat) setProgress(total ? processed / total : 0);
    log.setNote(message,
      processed < total ? `prefill: ${count(total)} prompt tokens, ${count(cache)} reused` : "");
  }
  if (event.thoughts || event.text) {
    if (event.thoughts) message.thoughts = (message.thoughts || "") + event.thoughts;
    message.text += event.text || "";
    if (conversation === chat) setProgress(1);
    log.grow(message);
  }
  if (event.finish) {
    const prompt = event.timings.prompt_n + event.timings.cache_n;
    message.tokens = {
      kv: event.cache?.kv || message.kv,
      prompt,
      total: prompt + event.timings.predicted_n,
      rate: event.timings.predicted_per_second
    };
    message.cut = event.finish === "length" ? "length" : "";
    message.note = noteOf(event) + (CUTS[message.cut] || "");
  }
};

/* Answer with `message`, the last one. If it has text already, that is continued. */
const answer = async (conversation, message) => {
  const run = {message, abort: new AbortController(), tokens: null};
  let saved = Date.now();
  runs.set(conversation, run);
  if (!message.text) delete message.thoughts;
  Object.assign(message, {cut: "interrupted", error: "", note: "", kv: conversation.settings.kv});
  log.update(message);
  showState();
  poll();
  run.done = (async () => {
    await save(conversation);
    const body = {
      model: modelOf(conversation)?.id,
      messages: historyOf(conversation, message),
      ...requestFields(conversation.settings)
    };
    try {
      for await (const event of streamAnswer(body, run.abort.signal)) {
        applyEvent(conversation, run, event);
        if (Date.now() - saved > SAVE_MS) {
          saved = Date.now();
          save(conversation);
        }
      }
    } catch (error) {
      const stopped = error.name === "AbortError";
      message.cut = message.text ? "stopped" : "";
      if (stopped)
        message.note = CUTS.stopped;
      else
        showFailure(message, error);
    }
    runs.delete(conversation);
    log.update(message);
    if (server.models.length > 1) await loadModel(); /* it is loaded now */
    if (conversation === chat) {
      showState();
      speak(message.error || message.text);
    }
    await save(conversation);
    poll();
  })();
  return run.done;
};

const showFailure = (message, error) => {
  message.error = error.message;
  message.failed_by = error instanceof ServerError && error.status === 0 ? "network" : "server";
  if (error.status === 401) askForKey();
};

const answerNew = conversation => {
  const message = {role: "assistant", text: ""};
  conversation.messages.push(message);
  if (conversation === chat) log.add(message);
  return answer(conversation, message);
};

/* Replace the messages from `at` on; the former ones come back with Undo. */
const cutFrom = (at, text) => {
  const conversation = chat, former = conversation.messages;
  conversation.messages = former.slice(0, at);
  log.show(conversation.messages);
  $("log").focus({preventScroll: true}); /* the button that had the focus may be gone */
  const undo = async () => {
    const run = runs.get(conversation);
    run?.abort.abort();
    await run?.done;
    conversation.messages = former;
    if (conversation === chat) showChat(chat);
    save(conversation);
  };
  if (former.slice(at).some(message => message.text)) toast(text, undo);
};

const settingsAreValid = () => {
  if (checkSettings()) return true;
  showText($("ask-problem"), $("set-problem").textContent);
  return false;
};

const log = new Log({
  isRunning: message => [...runs.values()].some(run => run.message === message),
  retry(message) {
    if (!settingsAreValid() || runs.has(chat)) return;
    cutFrom(chat.messages.indexOf(message) + (message.role === "user" ? 1 : 0),
      "The answer is replaced.");
    answerNew(chat);
  },
  edit(message, text) {
    if (!text.trim() && !message.files?.length) return;
    if (message.role === "assistant") {
      message.text = text;
      delete message.tokens;
      log.update(message);
      save(chat);
      return;
    }
    if (!settingsAreValid() || runs.has(chat)) return;
    cutFrom(chat.messages.indexOf(message), "The message and what followed are replaced.");
    send(text, message.files || []);
  },
  async remove(message) {
    cutFrom(chat.messages.indexOf(message), "Deleted.");
    showState();
    if (chat.messages.length)
      await save(chat);
    else if (chat.version) {
      await store.remove(chat.id);
      chat.version = 0;
      list.draw(chat.id);
    }
  },
  resume(message) {
    if (settingsAreValid() && !runs.has(chat)) answer(chat, message);
  },
});

const send = (text, files) => {
  if (!settingsAreValid()) return false;
  const message = {role: "user", text, ...files.length ? {files} : {}};
  if (!chat.messages.length) {
    chat.title ||= titleOf(message);
    history.replaceState(null, "", "#" + chat.id);
    composer.draft_name = "lowkey-draft-" + chat.id;
    localStorage.removeItem("lowkey-draft-new");
  }
  chat.messages.push(message);
  log.add(message);
  answerNew(chat);
  return true;
};

const composer = new Composer({
  send,
  stop: () => runs.get(chat)?.abort.abort(),
  used: () => (chat && tokensNow()?.total) || 0,
  limit: () => server.model?.meta.n_ctx || 0,
});

/* ---- the list, other tabs ---- */

const list = new List(store, {
  open: openChat,
  async renamed(id, title) {
    const conversation = id === chat.id ? chat : await store.load(id);
    if (!conversation) return;
    conversation.title = title;
    await save(conversation);
    showState();
  },
  removed(id) {
    for (const [conversation, run] of runs)
      if (!id || conversation.id === id) run.abort.abort();
    if (!id || id === chat.id) openChat("");
  },
});

store.listen(async id => {
  list.draw(chat.id);
  const in_use = () =>
    id !== chat.id || runs.has(chat) || saving.has(chat) || document.querySelector(".editor");
  const stored = !in_use() && await store.load(id);
  if (stored && stored.version > chat.version && !in_use()) {
    stored.settings = chat.settings;
    showChat(stored);
  }
});

/* ---- the server ---- */

/* The model of a conversation; the first one if it names none that the server has. */
const modelOf = conversation =>
  server.models.find(model => model.id === conversation?.settings.modelid) || server.models[0];

/* Show the chosen model, and its recipes once it is loaded. */
const showModel = () => {
  server.model = server.models.find(model => model.id === $("modelid").value) || server.models[0];
  const loaded = server.model.state === "loaded" ? "" : ", not loaded";
  $("model").textContent =
    `${server.model.id}, ${count(server.model.meta.n_ctx)} tokens of context${loaded}`;
  setRecipes(server.model.meta.kv);
};

const loadModel = async () => {
  try {
    server.models = await getModels();
    setModels(server.models.map(model => model.id));
    writeSettings(chat ? chat.settings : defaultSettings());
    showModel();
    writeSettings(chat ? chat.settings : defaultSettings());
  } catch (error) {
    $("model").textContent = error.status === 401 ? "needs an API key" : error.message;
    if (error.status === 401) askForKey();
  }
};
const askForKey = () => {
  $("more").open = true;
  showText($("ask-problem"), "This server needs an API key: see Settings.");
};

const showReachable = reachable => {
  const is_back = reachable && !server.reachable;
  server.reachable = reachable;
  showText($("offline"), reachable ? "" : "The server cannot be reached. Trying again…");
  if (!is_back) return;
  const failed = chat.messages.at(-1)?.failed_by === "network" && chat.messages.at(-1).error;
  toast(failed ? "The server is back: Retry answers again." : "The server is back.");
};

/* Ask for the sessions: often while an answer runs, less often if the server is not reachable. */
async function poll() {
  clearTimeout(server.timer);
  server.timer = -1;
  const id = server.poll_id = (server.poll_id || 0) + 1;
  try {
    const state = await getSlots();
    server.n_failed = 0;
    showReachable(true);
    if (!server.model) await loadModel();
    drawAll(state);
    const busy = runs.has(chat), slot = findSlot(state.slots, tokensNow(), busy);
    if (slot || !busy) /* a busy one is known once it has started to read */
      drawSlot(slot, tokensNow()?.rate,
        tokensNow() ?
          "No session of the server ends with this message. The next answer reuses what it can, " +
            "and reads the rest." :
          "");
  } catch (error) {
    server.n_failed++;
    if (error.status === 0) showReachable(false);
    $("allbytes").textContent = error.message;
  }
  if (id !== server.poll_id) return; /* a newer call goes on */
  const pause = server.n_failed ? Math.min(1000 * 2 ** (server.n_failed - 1), 10000) :
    document.hidden             ? 5000 :
    runs.has(chat)              ? 250 :
                                  2000;
  server.timer = setTimeout(poll, pause);
}

/* ---- panels and keys ---- */

const showPanels = () => {
  const shown = document.body.classList;
  $("show-list").ariaExpanded = String(shown.contains("list"));
  $("show-panel").ariaExpanded = String(shown.contains("panel"));
  $("show-list").textContent = shown.contains("list") ? "Back" : "Chats";
  $("show-panel").textContent = shown.contains("panel") ? "Back" : "Settings";
};
const togglePanel = (name, other) => {
  document.body.classList.toggle(name);
  document.body.classList.remove(other);
  showPanels();
};
$("show-list").addEventListener("click", () => togglePanel("list", "panel"));
$("show-panel").addEventListener("click", () => togglePanel("panel", "list"));
$("new").addEventListener("click", () => openChat(""));
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]"))
    runs.get(chat)?.abort.abort();
  if (event.altKey && event.key.toLowerCase() === "n") {
    event.preventDefault();
    openChat("");
  }
});

$("about").append(
  el("p", {},
    "Conversations are kept in this browser only. The page loads nothing from other servers."),
  el("p", {},
    hasMarkdown ? "Markdown: marked, MIT license." :
                  "Built without marked: Markdown is shown as plain text, except for code."),
  hasMarkdown ? el("a", {href: "page/marked-license.txt", target: "_blank", rel: "noopener"},
                  "License of marked") :
                "");

listenSettings(
  id => {
    if (id === "modelid") showModel();
    chat.settings = {...readSettings()};
    showText($("ask-problem"), "");
    showRecipeChange();
    if (chat.messages.length && $(id).tagName !== "TEXTAREA") save(chat);
  },
  () => {
    showText($("ask-problem"), "");
    loadModel().then(poll);
  });
for (const id of ["system", "other"])
  $(id).addEventListener("change", () => {
    if (chat.messages.length) save(chat);
  });
addEventListener("hashchange", openFromAddress);
addEventListener("popstate", openFromAddress);
addEventListener("pagehide", leaveUnfinished);
writeSettings(defaultSettings());
await loadModel();
await openFromAddress();
