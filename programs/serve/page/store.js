/* Conversations in the browser (IndexedDB), by origin. Two tables: `list` has what the list of
 * conversations shows, `body` the messages. A conversation has a version, so that two tabs do not
 * overwrite each other. Without IndexedDB everything is kept in memory until the page closes. */
export const MAX_BYTES = 256 << 20; /* of all conversations */

export class ConflictError extends Error {}

const finished = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const openDatabase = () => new Promise((resolve, reject) => {
  const request = indexedDB.open("lowkey", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("list", {keyPath: "id"});
    request.result.createObjectStore("body", {keyPath: "id"});
  };
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
  request.onblocked = () => reject(new Error("another tab blocks it"));
});

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(8)), byte => byte.toString(16).padStart(2, "0"))
    .join("");

/* The entry of the list, and the body, of a conversation. */
const split = conversation => {
  const {id, title, created, changed, version, settings, messages} = conversation;
  const body = {id, settings, messages: structuredClone(messages)};
  return [{id, title, created, changed, version, bytes: JSON.stringify(body).length}, body];
};

export class Store {
  /* `problem`: why nothing is kept; empty if conversations are kept. */
  static async open() {
    const store = new Store();
    store.memory = new Map();
    store.problem = "";
    store.total = 0;
    try {
      store.db = await openDatabase();
      store.db.onversionchange = () => store.db.close();
    } catch (error) { store.problem = `This browser keeps no conversations: ${error.message}`; }
    store.channel = new BroadcastChannel("lowkey");
    return store;
  }

  /* Call `changed(id)` when another tab has changed a conversation; id "": several. */
  listen(changed) { this.channel.onmessage = event => changed(event.data); }

  async #run(mode, work) {
    const transaction = this.db.transaction(["list", "body"], mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () =>
        reject(transaction.error || new Error("the browser did not save"));
    });
    done.catch(() => {}); /* it is awaited below, unless work() fails first */
    const result = await work(transaction.objectStore("list"), transaction.objectStore("body"));
    await done;
    return result;
  }

  /* Entries, the newest first. */
  async list() {
    const entries = this.db ? await this.#run("readonly", list => finished(list.getAll())) :
                              [...this.memory.values()].map(pair => pair[0]);
    this.total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
    return entries.sort((a, b) => b.changed - a.changed);
  }

  async load(id) {
    const pair = this.db ?
      await this.#run(
        "readonly", (list, body) => Promise.all([finished(list.get(id)), finished(body.get(id))])) :
      this.memory.get(id) || [];
    return pair[0] && pair[1] ? {...structuredClone(pair[1]), ...pair[0]} : null;
  }

  /* Save a conversation and increment its version. Throws ConflictError if another tab saved a
   * newer one, or removed it. */
  async save(conversation) {
    const [entry, body] = split(conversation);
    entry.version++;
    if (this.total + entry.bytes > MAX_BYTES)
      throw new Error("The conversations in this browser take more than 256 MiB: delete some.");
    if (this.db) {
      const conflict = await this.#run("readwrite", async (list, bodies) => {
        const stored = await finished(list.get(entry.id));
        if ((stored?.version || 0) !== conversation.version) return true;
        list.put(entry);
        bodies.put(body);
        return false;
      });
      if (conflict) throw new ConflictError("changed in another tab");
    } else
      this.memory.set(entry.id, [entry, body]);
    conversation.version = entry.version;
    this.channel.postMessage(entry.id);
  }

  async remove(id) {
    this.memory.delete(id);
    if (this.db)
      await this.#run("readwrite", async (list, body) => {
        list.delete(id);
        body.delete(id);
      });
    this.channel.postMessage(id);
  }

  async clear() {
    this.memory.clear();
    if (this.db)
      await this.#run("readwrite", async (list, body) => {
        list.clear();
        body.clear();
      });
    this.channel.postMessage("");
  }

  /* Ids of the conversations that contain a text. */
  async search(text) {
    const found = new Set(), wanted = text.toLowerCase();
    const holds = string => string.toLowerCase().includes(wanted);
    for (const entry of await this.list()) {
      const body = holds(entry.title) ? null : await this.load(entry.id);
      if (!body || body.messages.some(message => holds(message.text))) found.add(entry.id);
    }
    return found;
  }
}

/* ---- export and import ---- */

export const exportJson = conversations =>
  JSON.stringify({format: "lowkey-conversations", version: 1, conversations}, null, 1);

export const exportText = conversation =>
  conversation.messages
    .map(message => `${message.role === "user" ? "You" : "Model"}:\n` +
        (message.files || []).map(file => `[${file.name}]\n${file.text}\n\n`).join("") +
        message.text + "\n")
    .join("\n");

const isText = value => typeof value === "string";
const importMessage = message => {
  if (!["user", "assistant"].includes(message?.role) || !isText(message.text))
    throw new Error("the file has a message without a role or a text");
  const files = (Array.isArray(message.files) ? message.files : [])
                  .filter(file => isText(file?.name) && isText(file?.text))
                  .map(({name, text}) => ({name, text}));
  return {
    role: message.role,
    text: message.text,
    ...isText(message.thoughts) ? {thoughts: message.thoughts} : {},
    ...files.length ? {files} : {},
    ...isText(message.note) ? {note: message.note} : {}
  };
};

/* The conversations of an exported file, as new ones. Throws if it is another file. */
export const importJson = text => {
  let data;
  try {
    data = JSON.parse(text);
  } catch { throw new Error("the file is not JSON"); }
  if (data?.format !== "lowkey-conversations" || !Array.isArray(data.conversations))
    throw new Error("the file has no conversations of this page");
  return data.conversations.map(given => ({
    id: newId(),
    version: 0,
    title: String(given?.title || "Imported").slice(0, 120),
    created: Number(given?.created) || Date.now(),
    changed: Number(given?.changed) || Date.now(),
    settings: Object.fromEntries(["kv", "temperature", "max", "system", "other"].map(
      name => [name, String(given?.settings?.[name] ?? "")])),
    messages: (Array.isArray(given?.messages) ? given.messages : []).map(importMessage),
  }));
};
