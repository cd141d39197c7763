"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const list = document.getElementById("list");
  const view = document.getElementById("transcript");
  const bySetting = document.getElementById("filter-setting");
  const byOutcome = document.getElementById("filter-outcome");
  const byText = document.getElementById("filter-text");
  const count = document.getElementById("count");
  const PAGE = 200;
  let matches = [];
  let shown = 0;

  // Text is only ever set as text: nothing here parses markup.
  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function number(value) {
    if (value === null || value === undefined) return "none";
    return Number.isInteger(value) ? String(value) : value.toPrecision(3);
  }

  function option(value, text) {
    const element = make("option", "", text);
    element.value = value;
    return element;
  }

  bySetting.append(option("", "all"));
  data.settings.forEach((name, i) => bySetting.append(option(String(i), name)));

  function filter() {
    const words = byText.value.trim().toLowerCase();
    matches = data.transcripts.filter((t) =>
      (bySetting.value === "" || t.setting === Number(bySetting.value)) &&
      (byOutcome.value === "" || (t.mark !== "") === (byOutcome.value === "marked")) &&
      (words === "" || `${t.id} ${t.goal} ${t.category}`.toLowerCase().includes(words)));
    list.replaceChildren();
    shown = 0;
    more();
    count.textContent = `${matches.length} of ${data.transcripts.length}`;
  }

  function more() {
    for (const t of matches.slice(shown, shown + PAGE)) list.append(entry(t));
    shown = Math.min(shown + PAGE, matches.length);
    if (shown < matches.length) {
      const item = make("li");
      const button = make("button", "", `${matches.length - shown} more`);
      button.addEventListener("click", () => { item.remove(); more(); });
      item.append(button);
      list.append(item);
    }
  }

  function entry(t) {
    const item = make("li");
    const button = make("button");
    if (t.mark) button.append(make("span", "mark", t.mark));
    button.append(make("span", "", t.id), make("span", "sub", data.settings[t.setting]));
    button.addEventListener("click", () => {
      for (const other of list.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      show(t);
    });
    item.append(button);
    return item;
  }

  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && at >= 0 && buttons[at + step]) {
      event.preventDefault();
      buttons[at + step].focus();
    }
  });

  function show(t) {
    view.replaceChildren(make("h3", "", t.id), make("p", "", t.goal));
    const facts = [data.settings[t.setting], `seed ${t.seed}`, `run ${t.run}`, `status ${t.status}`];
    if (t.category) facts.unshift(t.category);
    view.append(make("p", "hint", facts.join(" \u00b7 ")));
    if (t.steps.length === 0) {
      view.append(make("p", "empty", "No step was finished."));
      return;
    }
    const body = make("div");
    if (t.steps.length > 1) view.append(slider(t, body));
    if (t.steps.length < t.total_steps) {
      view.append(make("p", "hint", `${t.steps.length} of ${t.total_steps} steps are in this report; run.json has all.`));
    }
    view.append(body);
    fill(body, t.steps[0]);
  }

  function slider(t, body) {
    const row = make("div", "slider");
    const label = make("label", "", "Step ");
    const input = make("input");
    const output = make("output");
    input.type = "range";
    input.min = "0";
    input.max = String(t.steps.length - 1);
    input.value = "0";
    const update = () => {
      const step = t.steps[Number(input.value)];
      output.textContent = `${step.step}, loss ${number(step.loss)}`;
      input.setAttribute("aria-valuetext", `step ${step.step}`);
      fill(body, step);
    };
    input.addEventListener("input", update);
    label.append(input);
    row.append(label, output);
    output.textContent = `${t.steps[0].step}, loss ${number(t.steps[0].loss)}`;
    return row;
  }

  function fill(body, step) {
    body.replaceChildren();
    if (step.flags.length) body.append(make("p", "hint", `flags: ${step.flags.join(", ")}`));
    if (step.input === null) body.append(make("p", "empty", "The input is embeddings; no text stands for it."));
    for (const message of step.input || []) body.append(block("turn", message.role, message.content));
    if (step.prefill) body.append(block("turn", "assistant (already said)", step.prefill));
    if (step.answers.length === 0) body.append(make("p", "empty", "No answer was sampled at this step."));
    step.answers.forEach((answer, k) => body.append(answerBlock(answer, k, step.answers.length)));
  }

  function block(className, role, text) {
    const box = make("div", className);
    const head = make("div", "role");
    head.append(make("span", "", role));
    const body = make("p", "text", text);
    body.dir = "auto";
    box.append(head, body);
    return box;
  }

  function answerBlock(answer, k, total) {
    const box = block("answer", total > 1 ? `answer ${k + 1} of ${total}` : "answer", answer.text || "(empty)");
    const head = box.firstChild;
    for (const [judge, value] of Object.entries(answer.scores)) {
      head.append(make("span", "score", `${judge}: ${value === null ? "unscored" : number(value)}`));
    }
    if (answer.end !== "stop") head.append(make("span", "", `ended by ${answer.end}`));
    if (answer.error) head.append(make("span", "", `error: ${answer.error}`));
    if (answer.hide) {
      const text = box.lastChild;
      const button = make("button", "reveal", `Show this answer (${answer.hide})`);
      button.addEventListener("click", () => {
        button.replaceWith(text);
        box.classList.remove("hidden");
        text.tabIndex = -1;
        text.focus();
      });
      box.classList.add("hidden");
      text.replaceWith(button);
    }
    return box;
  }

  for (const control of [bySetting, byOutcome]) control.addEventListener("change", filter);
  byText.addEventListener("input", filter);
  filter();
})();
