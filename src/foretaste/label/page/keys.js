/* Keys of the page: shown by F1, set by whoever uses them, kept in this browser. Those of classes are set under Classes.
   And classes by typing, for those that have no key. */
"use strict";

const KEY_WORDS = {
  undo: "Undo", skip: "Skip", unsure: "Not sure", ignore: "Set aside", accept: "The likeliest class, or the answer as it stands", zoomIn: "Zoom in",
  zoomOut: "Zoom out", zoomOff: "Whole picture", darker: "Darker", brighter: "Brighter", find: "Search in the text",
  findClass: "Find a class by typing", play: "Play or pause a clip", keys: "Keys", review: "Review", grid: "Grid", classes: "Classes", overview: "Overview",
};
const BROWSER_KEYS = ["f3", "f5", "f6", "f7", "f10", "f11", "f12", "tab"];
const keyShown = (key) => ({ " ": "space", backspace: "⌫", delete: "del", escape: "esc", arrowup: "↑", arrowdown: "↓" }[key] || (/^f\d+$/.test(key) ? key.toUpperCase() : key));

/* Every place that names a key of the page has data-key: a kbd shows it, a button says it to screen readers. */
function drawKeys() {
  for (const node of document.querySelectorAll("[data-key]")) {
    const key = keyOf(node.dataset.key);
    if (node.dataset.title) node.title = `${node.dataset.title} (${keyShown(key)})`;
    if (node.matches("kbd")) node.textContent = keyShown(key);
    else node.setAttribute("aria-keyshortcuts", key === " " ? "Space" : /^[a-z]{2}|^f\d/.test(key) ? key[0].toUpperCase() + key.slice(1) : key);
  }
  const rows = Object.entries(KEY_WORDS).map(([action, words]) => {
    const button = made("button", keyShown(keyOf(action)), "act");
    button.dataset.action = action;
    button.type = "button";
    button.setAttribute("aria-label", `${words}: ${keyShown(keyOf(action))}. Press to set another key`);
    button.addEventListener("click", () => { settingKey = action; button.textContent = "press a key"; $("keys-words").textContent = `Press the key for “${words}”, or Escape.`; });
    const dd = made("dd");
    dd.append(button);
    return [made("dt", words), dd];
  });
  const classes = (state?.classes || []).map((c) => [made("dt", c.name), made("dd", c.keys.join(" ") || "none")]);
  const fixed = [["Move, or pan a zoomed picture", "arrows"], ["Back, or leave a box", "esc"]].map(([what, key]) => [made("dt", what), made("dd", key)]);
  $("keys-list").replaceChildren(...[...rows, ...fixed, ...classes].flat());
}

let settingKey = null;
$("keys").addEventListener("keydown", (event) => {
  if (!settingKey || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  const action = settingKey, key = event.key.toLowerCase();
  settingKey = null;
  const taken = key === "escape" ? null : BROWSER_KEYS.includes(key) ? "the browser" : key.startsWith("arrow") ? "the page" : state.classes.find((c) => c.keys.includes(key))?.name ?? KEY_WORDS[Object.keys(KEYS).find((a) => a !== action && keyOf(a) === key)];
  $("keys-words").textContent = key === "escape" ? "Nothing was changed." : taken ? `${keyShown(key)} is the key of ${taken}; choose another.` : `“${KEY_WORDS[action]}” is ${keyShown(key)} now, in this browser.`;
  if (!taken && key !== "escape") { ownKeys[action] = key; localStorage.setItem("foretaste-keys", JSON.stringify(ownKeys)); }
  drawKeys();
  $("keys").querySelector(`[data-action=${action}]`).focus();
});
$("keys").addEventListener("close", () => { settingKey = null; atItem(); });
$("keys-reset").addEventListener("click", () => { for (const action of Object.keys(ownKeys)) delete ownKeys[action]; localStorage.removeItem("foretaste-keys"); $("keys-words").textContent = "All keys are as at first."; drawKeys(); });
$("keys-close").addEventListener("click", () => $("keys").close());
$("keys-open").addEventListener("click", openKeys);
function openKeys() {
  $("keys-words").textContent = "Press a key's button to set another.";
  drawKeys();
  if (!$("keys").open) $("keys").showModal();
}
drawKeys();

/* Classes by typing, where some have no key: a box above buttons of classes. Those whose names have all the words stay;
   Enter gives the first, Escape leaves. */

const someClassHasNoKey = () => taskKind() !== "number" && (state?.classes || []).some((c) => !c.keys.length);

function classFinder(name, buttons, choose) {
  const input = $(`${name}-find`), finder = {
    draw() {
      const wanted = folded(input.value).split(/\s+/).filter(Boolean);
      const left = [...buttons.children].filter((b) => { b.hidden = !wanted.every((w) => folded(b.dataset.name).includes(w)); return !b.hidden; });
      for (const b of buttons.children) b.classList.toggle("first", wanted.length > 0 && b === left[0]);
      $(`${name}-finder`).hidden = !someClassHasNoKey();
      $(`${name}-count`).textContent = !wanted.length ? "" : left.length ? `${left.length} of ${state.classes.length}, first ${left[0].dataset.name}` : "no class has that";
    },
    clear() { input.value = ""; finder.draw(); },
  };
  input.addEventListener("input", finder.draw);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    const first = event.key === "Enter" && buttons.querySelector(".first");
    if (event.key === "Enter" && input.value.trim() && !first) return;  // none fits: go on typing
    finder.clear();
    input.blur();
    atItem();
    if (first) choose(first.dataset.name);
  });
  return finder;
}
const classesFound = classFinder("class", $("classes"), (name) => (taskKind() === "several" ? toggle(name) : give("label", name)));
