/* Answers that are no single class. Several classes: each button is a yes or a no, and Enter keeps the answer as it
   stands. A number: a slider, arrows, or typed. What stands there at first is what the model says, but for items that
   measure and where the model is hidden. Once it is on the screen only the person changes it. */
"use strict";

let yes = new Set();       // the classes that are on, of the item on the screen
let number = null;         // the number that stands there; null before anybody has said one

const taskKind = () => state?.task.kind || "one";
const namesOf = (label) => label.split("|").filter(Boolean);

/* A label for a reader. */
const words = (label) => (taskKind() === "several" && label.startsWith("|") ? namesOf(label).join(", ") || "none of them" : label);

/* Called when another item comes to the screen, and when it is answered again. */
function beginAnswer(item) {
  if (!item || taskKind() === "one") return;
  const shown = !item.check && !item.second && !document.querySelector(".guess").classList.contains("hidden");
  const start = item.answer?.label ?? (shown ? item.guess : null);
  yes = new Set(taskKind() === "several" && start ? namesOf(start) : []);
  const { low, high } = state.task;
  number = taskKind() === "number" && start !== null && start !== undefined ? onScale(Math.max(low, Math.min(high, Number(start)))) : null;
  drawAnswer();
}

const onScale = (value) => {
  const { low, high, step } = state.task, digits = Math.max(0, ...[low, step].map((v) => (String(v).split(".")[1] || "").length));
  return Number(Math.max(low, Math.min(high, low + Math.round((value - low) / step) * step)).toFixed(digits));
};

function drawAnswer() {
  $("keep").hidden = taskKind() === "one";
  $("number").hidden = taskKind() !== "number";
  if (taskKind() === "several") {
    document.querySelectorAll("#classes button").forEach((b) => b.setAttribute("aria-pressed", String(yes.has(b.dataset.name))));
    $("keep-words").textContent = `Keep: ${state.classes.map((c) => c.name).filter((n) => yes.has(n)).join(", ") || "none of them"}`;
  } else if (taskKind() === "number") {
    const { low, high, step } = state.task, slider = $("number-slider");
    Object.assign(slider, { min: low, max: high, step });
    slider.value = number ?? (low + high) / 2;
    slider.classList.toggle("unset", number === null);
    slider.setAttribute("aria-valuetext", number === null ? "nothing yet" : String(number));
    $("number-low").textContent = low;
    $("number-high").textContent = high;
    if (document.activeElement !== $("number-value")) $("number-value").value = number ?? "";
    $("keep-words").textContent = number === null ? "Choose a number" : `Keep ${number}`;
  }
}

/* Look-ahead for each question: how likely a yes is, and how many other answers follow a yes and a no. */
function ahead(item) {
  if (taskKind() !== "several") return;
  const p = Object.fromEntries((item?.likely || []).map((l) => [l.name, l.p])), hidden = document.querySelector(".guess").classList.contains("hidden") || item?.check;
  document.querySelectorAll("#classes button").forEach((b) => {
    const q = item?.reason?.questions?.[b.dataset.name], sure = p[b.dataset.name];
    b.querySelector(".ahead").textContent = hidden || sure === undefined ? "" : `${Math.round(100 * sure)} %${q ? ` · yes: ${q.yes} follow · no: ${q.no}` : ""}`;
  });
}

function toggle(name, event) {
  if (event?.detail ? pressedOn !== onScreen : !isOpen()) return early();
  if (!yes.delete(name)) yes.add(name);
  drawAnswer();
  $("live").textContent = `${name}: ${yes.has(name) ? "yes" : "no"}.`;
}

function slide(by) {
  if (!isOpen()) return early();
  const { low, high } = state.task;
  number = onScale(number === null ? (low + high) / 2 : number + by * state.task.step);
  drawAnswer();
}

function keep(event) {
  if (event?.detail && pressedOn !== onScreen) return early();
  if (taskKind() === "several") return give("label", `|${state.classes.map((c) => c.name).filter((n) => yes.has(n)).join("|")}`);
  if (number === null) return early("Choose a number first: move the slider, or type it.");
  give("label", String(number));
}

function typed() {
  const text = $("number-value").value.trim().replace(",", "."), value = Number(text), { low, high } = state.task;
  const right = text !== "" && value >= low && value <= high;
  $("number-value").setAttribute("aria-invalid", String(text !== "" && !right));
  number = right ? onScale(value) : null;
  drawAnswer();
}

/* Keys of the answer: what a key does, or nothing. */
function answerKey(key) {
  if (taskKind() === "several" || taskKind() === "number") if (key === keyOf("accept")) return () => keep();
  if (taskKind() === "several") {
    const found = state.classes.find((c) => c.keys.includes(key));
    return found && (() => toggle(found.name));
  }
  if (taskKind() !== "number") return null;
  const by = { arrowright: 1, arrowup: 1, arrowleft: -1, arrowdown: -1, pageup: 10, pagedown: -10 }[key];
  if (by) return () => slide(by);
  if (key === "home" || key === "end") return () => { number = key === "home" ? state.task.low : state.task.high; drawAnswer(); };
  if (/^[0-9.,]$/.test(key) || (key === "-" && state.task.low < 0)) return () => { $("number-value").focus(); $("number-value").value = key; typed(); };
  return null;
}

/* What of the page is for single classes only. */
function drawTask() {
  const kind = taskKind();
  document.documentElement.dataset.task = kind;
  document.querySelector('#views [data-view="grid"]').hidden = kind !== "one";
  document.querySelector('#views [data-view="classes"]').hidden = kind === "number";
  document.querySelectorAll('a[href="/api/export/coco"]').forEach((a) => { a.hidden = kind === "number"; });
  $("balance-card").hidden = kind === "number";
  drawAnswer();
}

$("keep").addEventListener("click", keep);
$("number-slider").addEventListener("input", () => { if (!isOpen()) return early(); number = onScale(Number($("number-slider").value)); drawAnswer(); });
$("number-slider").addEventListener("change", atItem);
$("number-value").addEventListener("input", typed);
$("number-value").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  event.stopPropagation();
  typed();
  event.target.blur();
  keep();
  atItem();
});
