/* A project at a glance, on one page that can be printed. Accuracy, advice and classes are those of the panels. */
"use strict";

const whole = (n) => Math.round(n).toLocaleString().replace("-", "−");
const share = (p) => `${Math.round(100 * p)}\u00a0%`;
const between = (low, high, show) => `95 %: ${show(low)} to ${show(high)}`;
const duration = (hours) => (hours < 1 ? `${Math.max(1, Math.round(60 * hours))} min` : hours < 20 ? `${hours.toFixed(1)} h` : `${Math.round(hours)} h`);
const answers = (n) => `${whole(n)} ${Math.round(n) === 1 ? "answer" : "answers"}`;

function tileOf(title, much, words, now) {
  const box = made("section", "", "tile");
  box.append(made("h3", title), made("p", much, now ? "much now" : "much"), made("p", words, "small"));
  return box;
}

function tilesOf(d) {
  const s = d.state, last = s.curve.checked >= 5 ? s.curve.check.at(-1) : null, p = d.pace, tiles = [];
  tiles.push(tileOf("Labelled", `${whole(s.labelled)} of ${whole(s.total)}`, [[s.unsure, "not sure"], [s.ignored, "set aside"], [s.skipped, "skipped"]].filter(([n]) => n).map(([n, w]) => `${n} ${w}`).join(" · ")));
  tiles.push(last ? tileOf("Accuracy", share(last[1]), `${between(last[2], last[3], share)}, on ${s.curve.checked} items drawn at random`)
    : tileOf("Accuracy", "–", "Not measured yet: it needs five answers to items drawn at random."));
  if (d.saved) {
    const { random, asked, saved, low, high, accuracy } = d.saved;
    tiles.push(tileOf("Labels saved", saved > 0 ? `about ${whole(saved)}` : "none", `${between(low, high, whole)}. ${whole(asked)} asked ones do what ${whole(random)} in random order would: ${share(accuracy)}, on the items drawn at random`));
  } else tiles.push(tileOf("Labels saved", "–", "Compared with random order once 20 items drawn at random are labelled."));
  tiles.push(p.hours === null ? tileOf("Time left", "–", "There is no pace yet.")
    : tileOf("Time left", p.left ? duration(p.hours) : "none", `for all of it: ${answers(p.left)}, at ${whole(p.per_hour)} an hour${p.people > 1 ? ` and ${p.people} people` : ""}`));
  tiles.push(tileOf("When to stop", s.advice.stop?.now ? "Now" : s.advice.stop ? "Not yet" : "–", s.advice.stop?.text || "No advice yet.", s.advice.stop?.now));
  tiles.push(d.hour ? tileOf("One hour more", `${share(d.hour.accuracy)}`, `${between(d.hour.low, d.hour.high, share)}, with ${answers(d.hour.answers)} more, if errors go on falling as they did`)
    : tileOf("One hour more", "–", "Told when accuracy was measured on 20 items, over some time."));
  if (s.voices > 1 || d.shared) {
    const a = d.agreement;
    tiles.push(a ? tileOf("Agreement", a.value.toFixed(2), `${a.name}, ${between(a.low, a.high, (v) => v.toFixed(2))}, on ${whole(a.items)} items; ${share(a.same)} of the pairs are the same`)
      : tileOf("Agreement", "–", `${whole(d.shared)} items were answered by two people; it is told from five on`));
    tiles.push(tileOf("People disagree", whole(s.disagree), s.disagree ? "items to decide, in Review under “people disagree”" : "nothing to decide"));
  }
  return tiles;
}

function peopleTable(d) {
  const table = made("table", "", "plain-table"), head = made("tr"), judged = d.people.some((p) => p.of || p.open), weighed = d.people.some((p) => p.reliable);
  head.append(...["Person", "Answers", "Not sure", "At it", "An hour", ...(judged ? ["Said what counts"] : []), ...(weighed ? ["Reliable"] : []), "Last answer"].map((t) => Object.assign(made("th", t), { scope: "col" })));
  const body = d.people.map((p) => {
    const line = made("tr"), name = Object.assign(made("th", p.who), { scope: "row" });
    line.append(name, ...[whole(p.answers), whole(p.unsure), p.seconds ? duration(p.seconds / 3600) : "–", p.per_hour === null ? "–" : whole(p.per_hour), ...(judged ? [p.of || p.open ? `${p.right} of ${p.of}${p.open ? `, ${p.open} open` : ""}` : "–"] : []), ...(weighed ? [p.reliable ? `${share(p.reliable[0])} of ${whole(p.reliable[1])}` : "–"] : []), here(p.last)].map((t) => made("td", t)));
    return line;
  });
  const top = made("thead"), rows = made("tbody");
  top.append(head);
  rows.append(...body);
  table.append(top, rows);
  return body.length ? table : made("p", "Nobody has answered yet.", "small");
}

async function loadOverview() {
  $("overview-words").textContent = "Looking…";
  const d = await call("/api/overview").catch((e) => ({ error: e }));
  if (d.error) {
    if (d.error.status === 401) return askToken();
    $("overview-words").textContent = d.error.status ? sentence(d.error.message) : "The server does not answer. Press Look again.";
    return;
  }
  $("overview-words").textContent = `${d.state.title}, ${new Date().toLocaleString()}`;
  curve(d.state.curve);
  $("overview-tiles").replaceChildren(...tilesOf(d));
  $("overview-curve").replaceChildren(...[...$("curve").children].map((svg) => svg.cloneNode(true)));
  $("overview-curve-words").textContent = $("curve-words").textContent;
  $("overview-people").replaceChildren(peopleTable(d));
  balance(d.state.classes, $("overview-classes"));
}

$("overview-again").addEventListener("click", loadOverview);
$("overview-print").addEventListener("click", () => window.print());
views.overview = { open: loadOverview, actionOf: () => null };
