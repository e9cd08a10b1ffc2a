// Questions to the server that gave this page.

/** The server refused a question; the message is one line that names the field. */
export class Refused extends Error {}

/** The server did not answer. */
export class Lost extends Error {}

export async function ask(path, body, { signal, as = "json" } = {}) {
  let response;
  try {
    response = await fetch(path, {
      signal,
      ...(body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }),
    });
    if (response.ok) return await response[as]();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Lost("no answer");
  }
  const said = await response.json().catch(() => ({}));
  throw new Refused(said.error ?? `the server answered ${response.status}`);
}

/** Runs the newest task alone: while one runs, only the last of those that come waits. For sliders. */
export class Newest {
  #running = false;
  #waiting = null;

  async run(task) {
    this.#waiting = task;
    if (this.#running) return;
    this.#running = true;
    try {
      while (this.#waiting) {
        const next = this.#waiting;
        this.#waiting = null;
        await next();
      }
    } finally {
      this.#running = false;
    }
  }
}
