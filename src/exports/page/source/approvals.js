// What needs a person: buttons where the visitor's role allows it, else how it is done.

const RANKS = { read: 0, operate: 1, remedy: 2 };

class Approvals {
  constructor(dialog) {
    this.dialog = dialog;
    this.access = { role: "read", name: null };
    this.approvals = [];
    this.now = Date.now();
  }

  async learnRole() {
    try {
      this.access = await api("api/v1/access");
    } catch {
      // Without it, the page shows how it is done on the node.
    }
    this.show(this.approvals, this.now);
  }

  may(role) {
    return RANKS[this.access.role] >= RANKS[role];
  }

  show(approvals, now) {
    this.approvals = approvals;
    this.now = now;
    fill("approvals", approvals.map((asked) => h("tr", {},
      header(asked.what, asked.rule),
      cell("minor", asked.why),
      cell("minor", timeElement(asked.goes_ahead || asked.lapses, now)),
      h("td", {}, ...this.answer(asked, now)))), 4, "Nothing waits for a person.");
    for (const button of rows("approvals").querySelectorAll("button[data-decision]")) {
      button.onclick = () => this.ask(Number(button.dataset.decision), button.dataset.method);
    }
  }

  answer(asked, now) {
    if (asked.answer) return [asked.answer];
    // Here, since a narrow page has no column with the time.
    const due = asked.goes_ahead
      ? [h("small", {}, "goes ahead ", timeElement(asked.goes_ahead, now), " unless denied"), " "]
      : [];
    const button = (method, text) => h("button", {
      type: "button",
      "data-method": method,
      "data-decision": String(asked.decision),
      "aria-label": `${text}: ${visible(asked.what)}`,
    }, text);
    const made = [];
    if (!asked.goes_ahead && this.may("remedy")) made.push(button("POST", "Approve"), " ");
    if (this.may("operate")) made.push(button("DELETE", "Deny"));
    if (made.length) return due.concat(made);
    const verb = asked.goes_ahead ? "deny" : "approve";
    return due.concat(h("code", {}, `umawarden ${verb} ${asked.decision}`));
  }

  /** Has the person confirm it. */
  ask(decision, method) {
    const asked = this.approvals.find((one) => one.decision === decision);
    if (!asked) return;
    const verb = method === "POST" ? "Approve" : "Deny";
    const confirm = h("button", {
      type: "button", class: "strong", onclick: () => this.send(asked, method),
    }, verb);
    this.dialog.show(`${verb}?`, [
      h("p", {}, asked.what), h("p", {}, asked.why), h("p", {}, `Rule ${asked.rule}`),
      asked.goes_ahead
        ? h("p", {}, "It goes ahead ", timeElement(asked.goes_ahead, this.now), " unless denied.")
        : h("p", {}, "It is not done unless approved before ",
          timeElement(asked.lapses, this.now), "."),
      h("p", {}, this.access.name ? `As ${this.access.name}` : ""),
    ], [confirm]);
  }

  async send(asked, method) {
    try {
      await api(`api/v1/approvals/${asked.decision}`, {
        method,
        headers: { "content-type": "application/json", "umawarden-page": "1" },
        body: JSON.stringify({ comment: "on the page" }),
      });
      this.dialog.element.close();
    } catch (error) {
      this.dialog.show("It was not accepted", [h("p", { class: "critical" }, error.message)]);
    }
  }
}
