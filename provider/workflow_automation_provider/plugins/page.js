// The script of both pages. It adds no markup: whatever comes from a run or a person stays text.
"use strict";

const REFRESH_AFTER = 10_000;
const PARTS = ["status", "live", "actions", "history"];

const byId = (id) => document.getElementById(id);

// The theme and the time zone that are chosen in Airflow ------------------------------------------

const chooseTheme = () => {
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "system";
};
chooseTheme();
addEventListener("storage", chooseTheme);

// In Airflow's frame, the colors are those of Airflow's own page, whatever its theme.
const matchColors = () => {
  const style = getComputedStyle(parent.document.documentElement);
  const names = document.querySelector("style").textContent.matchAll(/--chakra-[\w-]+/g);
  for (const [name] of names) {
    document.documentElement.style.setProperty(name, style.getPropertyValue(name));
  }
};
if (parent !== window) {
  matchColors();
  const changes = new MutationObserver(matchColors);
  changes.observe(parent.document.documentElement, { attributes: true });
}

const timeZone = () => {
  const chosen = (localStorage.getItem("timezone") || "").replaceAll('"', "");
  try {
    return new Intl.DateTimeFormat("sv-SE", { timeZone: chosen }).resolvedOptions().timeZone;
  } catch {
    return undefined; // the browser's
  }
};

const showTimes = (root) => {
  const format = new Intl.DateTimeFormat("sv-SE", {
    timeZone: timeZone(),
    dateStyle: "short",
    timeStyle: "medium",
  });
  for (const time of root.querySelectorAll("time")) {
    const text = format.format(new Date(time.dateTime));
    if (time.className === "at") time.textContent = text;
    else time.title = text;
  }
};

// Links -------------------------------------------------------------------------------------------

// The page is drawn in a frame that may open nothing: Airflow's page around it follows a link.
addEventListener("click", (event) => {
  const link = event.target.closest("a[target]");
  if (!link || parent === window) return;
  event.preventDefault();
  const twin = parent.document.createElement("a");
  twin.href = link.href;
  twin.rel = "noopener noreferrer";
  twin.target = link.target === "_top" && !event.ctrlKey && !event.metaKey ? "_self" : "_blank";
  twin.click();
});

class Refused extends Error {} // by Airflow, or before anything was sent
class Changed extends Refused {} // what the person has decided by

// Refresh -----------------------------------------------------------------------------------------

let isActing = false;

const forms = () => document.querySelector("#actions .forms");

// While a person fills in a form, or is asked, it stays.
const isInUse = () => {
  const shown = forms();
  if (!shown) return false;
  const fields = [...shown.querySelectorAll("input, textarea")];
  const isEdited = fields.some((field) => field.value !== field.defaultValue);
  const says = shown.querySelector(".ask:not([hidden]), .fault:not([hidden])");
  return isActing || isEdited || says !== null;
};

const fetchPage = async () => {
  const response = await fetch(location.href, { cache: "no-store" });
  if (response.redirected) {
    location.reload(); // to the login
    throw new Refused("you are no longer logged in.");
  }
  if (!response.ok) throw new Refused(`the page cannot be read now (${response.status}).`);
  return new DOMParser().parseFromString(await response.text(), "text/html");
};

// What a person has opened or folded stays so.
const attributes = (node) => node.getAttributeNames().filter((name) => name !== "open");

// Replace only what has changed: a selection, the focus and what is scrolled stay.
const change = (old, fresh) => {
  if (old.isEqualNode(fresh)) return;
  const isAlike = old.nodeName === fresh.nodeName && old.className === fresh.className;
  if (old.nodeType !== Node.ELEMENT_NODE || !isAlike) {
    old.replaceWith(fresh);
    return;
  }
  for (const name of attributes(old)) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const name of attributes(fresh)) old.setAttribute(name, fresh.getAttribute(name));
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  for (const [place, node] of after.entries()) {
    if (place < before.length) change(before[place], node);
    else old.append(node);
  }
  for (const node of before.slice(after.length)) node.remove();
};

const draw = (page, isForced = false) => {
  const isKept = isInUse() && !isForced;
  const focused = document.activeElement.href;
  prepare(page);
  for (const id of PARTS) {
    const part = byId(id);
    const fresh = page.getElementById(id);
    if (!part || !fresh || (id === "actions" && isKept)) continue;
    if (isForced) part.replaceWith(fresh);
    else change(part, fresh);
  }
  if (focused === document.activeElement.href) return;
  [...document.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
};

const refresh = async () => {
  try {
    if (byId("live") && !document.hidden) draw(await fetchPage());
  } catch {
    // Airflow cannot be reached now: what is shown says of when it is.
  } finally {
    setTimeout(refresh, REFRESH_AFTER);
  }
};

// What a person can do with a task ----------------------------------------------------------------

// Without this script, nothing is offered: the docs say how to do it by hand.
const prepare = (root) => {
  showTimes(root);
  const shown = root.querySelector("#actions .forms");
  if (shown) shown.hidden = false;
};

const EDIT = "edit task instances";
// Airflow's own page does not refresh what has ended.
const OUTDATED = "What stands above this tab is from before, until the page is loaded again.";

// Airflow's own REST API, with the person's session: it decides, and writes its audit log. A body
// that is text is JSON already.
const request = async (method, path, body, right = EDIT) => {
  const options = { method, headers: { accept: "application/json" } };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(`${forms().dataset.api}${path}`, options);
  } catch {
    throw new Refused("there was no response. Look at the task before you try again.");
  }
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;

  let detail = text;
  try {
    detail = JSON.parse(text).detail ?? text;
  } catch {
    // a gateway's own page
  }
  if (typeof detail !== "string") detail = JSON.stringify(detail);
  let why = `Airflow responded ${response.status}: ${detail.slice(0, 300)}`;
  if (response.status === 403) {
    why += `\nThis takes the right to ${right} of this DAG.`;
  }
  const refused = new Refused(why);
  refused.status = response.status;
  throw refused;
};

const segment = encodeURIComponent;
const place = () => {
  const { run, task, index } = forms().dataset;
  const path = `dagRuns/${segment(run)}/taskInstances/${segment(task)}`;
  return { run, task, index: Number(index), path };
};

const entryPath = (key) => {
  const { path, index } = place();
  const parts = key.split("/");
  // The slashes of a key are part of the path, but a browser would follow "." and ".." in it.
  const isPlain = !parts.some((part) => part === "." || part === "..");
  const encoded = isPlain ? parts.map(segment).join("/") : segment(key);
  return `${path}/state-store/${encoded}?map_index=${index}`;
};

const keepsState = () => "keepsState" in forms().dataset;

// What the plugin knows of this task, with the person's rights: it changes nothing.
const asked = async (path, query = {}) => {
  const values = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(query)) values.set(name, value);
  const response = await fetch(`task/${path}?${values}`, { cache: "no-store" });
  if (!response.ok) throw new Refused(`the task cannot be read now (${response.status}).`);
  return response.json();
};

const isIn = (instances) => {
  const keys = new Set(instances.map(([task, index]) => JSON.stringify([task, index])));
  return ({ task_id: task, map_index: index }) => keys.has(JSON.stringify([task, index]));
};

const clearRequest = (fields) => {
  const body = {
    dag_run_id: place().run,
    only_failed: true,
    reset_dag_runs: true,
    prevent_running_task: true,
    ...fields,
  };
  if (keepsState()) body.keep_task_state = true;
  return request("POST", "clearTaskInstances", body);
};

const marker = ({ task_id: task, map_index: index }) => (index < 0 ? task : [task, index]);

// The failed task instances downstream, which a Clear and a mark clear as well: those that have a
// run, or may have one, would start another.
const downstream = async () => {
  const { task, index } = place();
  const self = { task_id: task, map_index: index };
  const fields = { dry_run: true, task_ids: [marker(self)], include_downstream: true };
  const { task_instances: found } = await clearRequest(fields);
  const isSelf = isIn([[task, index]]);
  const hasRun = isIn(await asked("others"));
  const others = found.filter((one) => !isSelf(one));
  return {
    self: found.filter(isSelf),
    plain: others.filter((one) => !hasRun(one)),
    flows: others.filter(hasRun),
  };
};

// Exactly this task instance, and what failed downstream of it without a run.
const clear = async () => {
  const { self, plain } = await downstream();
  if (!self.length) fault("the task is no longer failed. Nothing was cleared.");
  const markers = [...self, ...plain].map(marker);
  const cleared = await clearRequest({ dry_run: false, task_ids: markers });
  if (!cleared.total_entries) fault("somebody else has cleared or marked the task.");
  return plain;
};

const mark = (state) => {
  const { path, index } = place();
  const mapped = index < 0 ? "" : `/${index}`;
  return request("PATCH", `${path}${mapped}`, { new_state: state });
};

// The result is JSON, and is sent as it was written: a number of JavaScript has fewer digits.
const giveResult = async (result) => {
  const { path, index } = place();
  const entry = `"map_index": ${index}, "value": ${result}`;
  try {
    await request("POST", `${path}/xcomEntries`, `{"key": "result", ${entry}}`, "create XComs");
  } catch (error) {
    if (error.status !== 409) throw error; // it is there
    await request("PATCH", `${path}/xcomEntries/result`, `{${entry}}`, "edit XComs");
  }
};

const fault = (text) => {
  throw new Refused(text);
};

// The run of a field, if the task may have it; null if the field is empty.
const runOf = async (field) => {
  const { key, name } = field.dataset;
  const runId = field.querySelector("[name=run_id]").value.trim();
  const runLink = field.querySelector("[name=run_link]").value.trim();
  const whose = name ? ` of ${name}` : "";
  if (!runId && !runLink) return null;
  if (!runId) fault(`Run ID${whose}: enter the id of the run, as the application shows it.`);
  const { shown, why_not: why } = await asked("run", { name, flow_run: runId });
  if (why) fault(`Run ID${whose}: ${shown}: ${why}.`);
  if (runLink && !/^https?:\/\/[^/]/i.test(runLink)) {
    fault(`Link${whose}: expected a URL that begins with https:// or http://.`);
  }
  const value = runLink ? { run_id: runId, run_link: runLink } : runId;
  return { key, name, shown, hasLink: Boolean(runLink), value };
};

const runsOf = async (form) => {
  const fields = [...form.querySelectorAll("[data-key]")];
  const runs = [];
  for (const field of fields) runs.push(await runOf(field));
  const found = runs.filter(Boolean);
  if (fields.length && !found.length) fault("Run ID: enter the id, as the application shows it.");
  return found;
};

const resultOf = (form) => {
  const text = form.querySelector("[name=result]")?.value.trim();
  if (!text) return undefined;
  try {
    JSON.parse(text);
  } catch (error) {
    fault(`Result: expected JSON, such as {"rows": 3}. ${error.message}`);
  }
  return text;
};

const names = (runs) =>
  runs.map(({ name, shown }) => `run ${shown}${name ? ` for ${name}` : ""}`).join(", ");

const filled = (text, runs, result) => {
  const withResult = result === undefined ? "" : ", with this result";
  return text.replace(/\{(runs|result)\}/g, (_, what) =>
    what === "runs" ? names(runs) : withResult,
  );
};

const instances = (found) =>
  `${found.length} task ${found.length === 1 ? "instance" : "instances"} downstream`;

const labels = (found) =>
  found
    .map(({ task_id: task, map_index: index }) => (index < 0 ? task : `${task} [${index}]`))
    .join(", ");

const isClear = (form) => ["continue", "start"].includes(form.dataset.kind);

// What becomes of the other tasks.
const consequence = async (form, runs) => {
  if (form.dataset.kind === "take-back") return "";
  const { self, plain, flows } = await downstream();
  if (!isClear(form)) {
    let text = plain.length ? ` Clears ${instances(plain)}.` : "";
    if (flows.length) text += ` Airflow then starts a second run of ${labels(flows)}.`;
    return text;
  }
  if (!self.length) fault("The task is no longer failed.");
  let text = ` Clears this task${plain.length ? ` and ${instances(plain)}` : ""}.`;
  if (flows.length) text += ` Leaves ${labels(flows)} as it is: it has a run, or may have one.`;
  if (plain.length && runs.some((run) => !run.hasLink)) {
    text += " Without a link, the next tasks get no run_link.";
  }
  // Airflow keeps it for all that a request clears, or for none.
  if (plain.length && keepsState()) text += " All of them keep their task state.";
  return text;
};

// Check what is filled in, and say in a sentence what will happen.
const ask = async (form) => {
  const runs = await runsOf(form);
  let text = filled(form.dataset.question, runs);
  const others = Number(form.dataset.names) - runs.length;
  if (runs.length && others > 0) {
    text += ` Starts the runs of ${others} other names again: a second run of each that has one.`;
  }
  return text + (await consequence(form, runs));
};

// What each does in the end, and what is said then.
const ACTS = {
  continue: [clear, "The task was given {runs}."],
  start: [clear, "The task starts again."],
  succeed: [() => mark("success"), "The task was marked as success{result}."],
  fail: [() => mark("failed"), "The task was marked as failed."],
  "take-back": [() => {}, "It is taken back."],
};

// Do it, in the order that loses nothing. What is done by then, `done` lists.
const act = async (form, done) => {
  const runs = await runsOf(form);
  const result = resultOf(form);

  const keys = runs.map((run) => run.key);
  for (const key of JSON.parse(forms().dataset.forgotten)) {
    if (keys.includes(key)) continue; // it is written below
    await request("DELETE", entryPath(key), undefined, "delete task instances");
    done.push("What was given to the task is taken back.");
  }
  for (const run of runs) {
    await request("PUT", entryPath(run.key), { value: run.value, expires_at: null });
    done.push(`The task is given ${names([run])}.`);
  }
  if (result !== undefined) {
    await giveResult(result);
    done.push("The result is stored as the XCom result.");
  }

  const [finish, said] = ACTS[form.dataset.kind];
  const cleared = await finish();
  const text = filled(said, runs, result);
  if (!isClear(form)) return text;
  return `${text} ${cleared.length ? `This task and ${instances(cleared)} were` : "This task was"} cleared.`;
};

const report = (text, isFailure = false) => {
  const shown = byId("report");
  shown.textContent = text;
  shown.classList.toggle("failed", isFailure);
  shown.hidden = false;
};

const redraw = async () => {
  try {
    draw(await fetchPage(), true);
  } catch {
    // the next refresh does
  }
};

const checkUnchanged = async () => {
  const { seen } = byId("actions").dataset;
  const page = await fetchPage();
  if (page.getElementById("actions")?.dataset.seen !== seen) {
    throw new Changed("the task has changed meanwhile. Nothing was sent: look at it again.");
  }
};

const confirmed = async (form) => {
  const done = [];
  try {
    await checkUnchanged();
    const text = await act(form, done);
    report(parent === window ? text : `${text}\n${OUTDATED}`);
  } catch (error) {
    const rest = done.length ? "But the rest failed" : "It failed";
    report([...done, `${rest}: ${error.message}`].join("\n"), true);
    if (!done.length && !(error instanceof Changed)) return; // it can be confirmed again
  }
  await redraw();
};

const show = (form, part) => {
  for (const button of forms().querySelectorAll("form > button")) button.disabled = part === "ask";
  form.querySelector("form > button").hidden = part === "ask";
  form.querySelector(".ask").hidden = part !== "ask";
  form.querySelector(".fault").hidden = part !== "fault";
};

// Do one thing at a time, and let no refresh take the form away meanwhile.
const acting = async (work) => {
  if (isActing) return;
  isActing = true;
  try {
    await work();
  } finally {
    isActing = false;
  }
};

addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.kind) return;
  event.preventDefault();
  if (!form.querySelector(".ask").hidden) return;
  acting(async () => {
    byId("report").hidden = true;
    try {
      form.querySelector(".ask p").textContent = await ask(form);
      show(form, "ask");
      // Not its button: the key that has asked is still held, or is pressed twice.
      form.querySelector(".ask").focus();
    } catch (error) {
      form.querySelector(".fault").textContent = error.message;
      show(form, "fault");
    }
  });
});

// What was asked was about what was filled in before.
addEventListener("input", (event) => {
  const form = event.target.closest("form[data-kind]");
  if (form && !event.target.closest(".ask")) show(form, "fields");
});

addEventListener("click", (event) => {
  const form = event.target.closest("form[data-kind]");
  if (!form) return;
  if (event.target.matches(".no")) {
    show(form, "fields");
    form.querySelector("form > button").focus();
  }
  if (event.target.matches(".yes")) acting(() => confirmed(form));
});

addEventListener("keydown", (event) => {
  if (event.repeat && event.target.matches(".yes")) event.preventDefault();
});

addEventListener("DOMContentLoaded", () => prepare(document));
setTimeout(refresh, REFRESH_AFTER);
