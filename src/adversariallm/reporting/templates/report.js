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
    fill(t, body, t.steps[0]);
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
      fill(t, body, step);
    };
    input.addEventListener("input", update);
    label.append(input);
    row.append(label, output);
    output.textContent = `${t.steps[0].step}, loss ${number(t.steps[0].loss)}`;
    return row;
  }

  function fill(t, body, step) {
    body.replaceChildren();
    if (step.flags.length) body.append(make("p", "hint", `flags: ${step.flags.join(", ")}`));
    if (step.input === null) body.append(make("p", "empty", "The input is embeddings; no text stands for it."));
    (step.input || []).forEach((message, i) => {
      const box = block("turn", message.role, message.content);
      const asked = t.prompt[i];
      if (asked && asked.role === message.role) markAttack(box.lastChild, asked.content, message.content);
      body.append(box);
    });
    if (step.view) body.append(tokenView(step.view, step.tokens));
    else if (step.tokens) body.append(make("p", "hint", `${step.tokens} tokens sent`));
    if (step.prefill) body.append(block("turn", "assistant (already said)", step.prefill));
    if (step.answers.length === 0) body.append(make("p", "empty", "No answer was sampled at this step."));
    step.answers.forEach((answer, k) => {
      body.append(answerBlock(answer, k, step.answers.length));
      if (answer.undefended !== undefined) body.append(undefendedBlock(answer.undefended));
    });
  }

  const KINDS = ["template", "prompt", "attack", "template after", "straddles the attack's edge"];

  function tokenView(view, total) {
    const box = make("details", "tokens");
    const exact = view.exact ? "" : "; the text does not give these ids back";
    box.append(make("summary", "", `${total} tokens sent${exact}`));
    const text = make("p", "text");
    for (const [piece, kind] of view.pieces) {
      const token = make("span", `token k${kind}`, piece);
      token.title = KINDS[kind];
      text.append(token);
    }
    box.append(text, make("p", "hint", "Marked: tokens of the attack. Underlined: a token that straddles its edge."));
    return box;
  }

  // Marks what differs from the request as it stands in the data set.
  function markAttack(place, asked, sent) {
    if (asked === sent) return;
    let start = 0;
    while (start < asked.length && start < sent.length && asked[start] === sent[start]) start += 1;
    let end = 0;
    const most = Math.min(asked.length, sent.length) - start;
    while (end < most && asked[asked.length - 1 - end] === sent[sent.length - 1 - end]) end += 1;
    const middle = make("mark", "attacktext", sent.slice(start, sent.length - end));
    middle.title = "differs from the request in the data set";
    place.replaceChildren(sent.slice(0, start), middle, sent.slice(sent.length - end));
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

  function undefendedBlock(text) {
    const box = block("answer hidden", "without the defense", text || "(empty)");
    const said = box.lastChild;
    const button = make("button", "reveal", "Show what the model says without the defense");
    button.addEventListener("click", () => {
      button.replaceWith(said);
      box.classList.remove("hidden");
      said.tabIndex = -1;
      said.focus();
    });
    said.replaceWith(button);
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

  // Behaviors by setting: filled when the section comes near, because most readers never scroll there.
  const bySet = document.getElementById("matrix-set");
  const matrix = document.getElementById("matrix");
  for (const name of new Set(data.sets)) bySet.append(option(name, name));

  function fillMatrix() {
    const columns = data.settings.map((_, i) => i).filter((i) => data.sets[i] === bySet.value);
    const rows = new Map();
    for (const t of data.transcripts) {
      if (data.sets[t.setting] !== bySet.value) continue;
      if (!rows.has(t.id)) rows.set(t.id, new Map());
      const cells = rows.get(t.id);
      if (!cells.has(t.setting)) cells.set(t.setting, []);
      cells.get(t.setting).push(t);
    }
    const head = make("tr");
    head.append(make("th", "", "behavior"), ...columns.map((i) => {
      const th = make("th", "", data.settings[i]);
      th.scope = "col";
      return th;
    }));
    const thead = make("thead");
    thead.append(head);
    const tbody = make("tbody");
    for (const [id, cells] of rows) {
      const row = make("tr");
      const th = make("th", "", id);
      th.scope = "row";
      row.append(th, ...columns.map((i) => matrixCell(cells.get(i) || [])));
      tbody.append(row);
    }
    matrix.replaceChildren(thead, tbody);
  }

  function matrixCell(found) {
    const cell = make("td");
    for (const t of found) {
      const bad = t.mark !== "" && t.mark !== "unscored";
      const button = make("button", `cell ${bad ? "bad" : t.mark}`, t.short);
      if (t.mark === "unscored") button.classList.add("unknown");
      button.setAttribute("aria-label", `${t.id}, ${data.settings[t.setting]}: ${t.short}`);
      button.addEventListener("click", () => {
        show(t);
        view.scrollIntoView({ block: "start" });
        view.focus({ preventScroll: true });
      });
      cell.append(button);
    }
    return cell;
  }

  bySet.addEventListener("change", fillMatrix);
  if (data.sets.length) {
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((e) => e.isIntersecting)) {
        watcher.disconnect();
        fillMatrix();
      }
    }, { rootMargin: "600px" });
    watcher.observe(matrix.parentElement);
  }

  for (const control of [bySetting, byOutcome]) control.addEventListener("change", filter);
  byText.addEventListener("input", filter);
  filter();
})();
