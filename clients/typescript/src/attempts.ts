/** The attempts of one call: when to try again, after how long, and what it ends with. */

import { type CallFailed, NoAnswer, NotAnAnswer, Refused } from "./errors.js";

export interface CallOptions {
  /** Ends the call, which throws its reason. */
  signal?: AbortSignal;
  /** Milliseconds of the call with all its attempts; the server is told what is left, and answers or refuses by then. */
  timeoutMs?: number;
  /** Sent besides, such as `X-Request-ID`. */
  headers?: Record<string, string>;
}

export interface Connection {
  baseUrl: string;
  headers: Record<string, string>;
  timeoutMs: number;
  maxRetries: number;
  fetch: typeof fetch;
}

// The server's own 504 arrives a little after the deadline; without it the caller would only know that time is over.
const ANSWER_MS = 1000;
const FIRST_PAUSE_MS = 100;
const MOST_REDIRECTS = 5;
const ANSWER_BYTES = 64 * 2 ** 20; // unfolded
const LONGEST_MS = 2 ** 31 - 1 - ANSWER_MS; // a timer of more ends at once
// Refused before anything was done, so even a change may be asked for again.
const AT_THE_DOOR = ["overloaded", "rate-limited", "bodies-held", "draining", "not-ready", "store-busy"];
// No connection was made, as Node says it; browsers do not tell.
const UNREACHED = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"];
// What changes more when it is asked for twice. A rebuild with an Idempotency-Key is known to the server.
const CHANGES = [
  "PUT /index/candidates",
  "POST /index/candidates/delete",
  "POST /index/activate",
  "POST /index/rollback",
  "POST /index/compact",
];

export class Attempts {
  readonly #deadline: number;
  readonly #isChange: boolean;
  readonly #body: string | null;

  constructor(
    private readonly connection: Connection,
    private readonly method: string,
    private readonly path: string,
    body: unknown,
    private readonly options: CallOptions,
  ) {
    this.#deadline = performance.now() + Math.min(options.timeoutMs ?? connection.timeoutMs, LONGEST_MS);
    this.#isChange = CHANGES.includes(`${method} ${path}`);
    this.#body = body === undefined ? null : JSON.stringify(body);
    this.#requireSendable();
  }

  /** Returns the answer, or throws what the last attempt ended with. */
  async made(): Promise<unknown> {
    for (let tried = 0; ; tried += 1) {
      this.options.signal?.throwIfAborted();
      const ended = await this.#attempt();
      if ("answer" in ended) return ended.answer;
      const { failed, retryAfter, mayRepeat } = ended;
      const growing = FIRST_PAUSE_MS * 2 ** tried * (1 + Math.random() / 2); // not all clients at once
      const pause = retryAfter === undefined ? growing : retryAfter * 1000;
      const isOver = tried >= this.connection.maxRetries || performance.now() + pause >= this.#deadline;
      if (isOver || !mayRepeat) throw failed;
      await slept(pause, this.options.signal);
    }
  }

  async #attempt(): Promise<{ answer: unknown } | { failed: CallFailed; retryAfter?: number; mayRepeat: boolean }> {
    const { baseUrl } = this.connection;
    try {
      const response = await this.#fetched();
      const text = await this.#text(response);
      const answer = parsed(text);
      if (!response.ok) return this.#refusal(response, answer);
      if (typeof answer === "object" && answer !== null) return { answer };
      throw new NotAnAnswer(`${baseUrl}: something answers, but not as polyrank serve does`);
    } catch (error) {
      if (error instanceof NotAnAnswer) throw error;
      this.options.signal?.throwIfAborted();
      const why = reason(error);
      const maybeDone = this.#isChange && !UNREACHED.includes(why.code);
      const message = `${baseUrl}: no answer (${why.message}); is polyrank serve running?`;
      return { failed: new NoAnswer(message, maybeDone, error), mayRepeat: !maybeDone };
    }
  }

  /** Returns the response, of where the same server redirects what only reads: no key may come to another one. */
  async #fetched(): Promise<Response> {
    const { baseUrl, fetch } = this.connection;
    const request = this.#request();
    let url = baseUrl + this.path;
    for (let redirects = 0; ; redirects += 1) {
      const response = await fetch(url, request);
      if (!isRedirect(response)) return response;
      await response.body?.cancel();
      const to = response.headers.get("Location"); // browsers do not tell
      const next = to !== null && URL.canParse(to, url) ? new URL(to, url).href : undefined;
      if (this.method !== "GET" || redirects === MOST_REDIRECTS || next === undefined || !isSameServer(url, next)) {
        const where = to ?? "another place";
        throw new NotAnAnswer(`${baseUrl}: this leads to ${where}; give a baseUrl that leads to the server itself`);
      }
      url = next;
    }
  }

  /** Returns the body of a response, which the time of the request bounds; throws NotAnAnswer where it has no end. */
  async #text(response: Response): Promise<string> {
    const decoder = new TextDecoder();
    const reader = response.body?.getReader();
    const parts: string[] = [];
    for (let bytes = 0; reader !== undefined; ) {
      const { done, value } = await reader.read();
      if (done) break;
      bytes += value.byteLength;
      if (bytes > ANSWER_BYTES) {
        await reader.cancel();
        const most = ANSWER_BYTES / 2 ** 20;
        throw new NotAnAnswer(`${this.connection.baseUrl}: the answer is larger than ${most} MiB; ask for less at once`);
      }
      parts.push(decoder.decode(value, { stream: true }));
    }
    return parts.join("") + decoder.decode();
  }

  /** Throws a TypeError where no attempt could send the request; else it would look like a broken connection. */
  #requireSendable(): void {
    const { url } = new Request(this.connection.baseUrl + this.path, { ...this.#request(), body: null, signal: null });
    if (!/^https?:/.test(url)) throw new TypeError(`baseUrl begins with http:// or https://, not as ${url}`);
  }

  #request(): RequestInit {
    const { timeoutMs, signal, headers } = this.options;
    const left = Math.max(1, Math.floor(this.#deadline - performance.now()));
    const over = AbortSignal.timeout(timeoutMs === undefined ? left : left + ANSWER_MS);
    return {
      method: this.method,
      headers: {
        ...this.connection.headers,
        ...(this.#body !== null && { "Content-Type": "application/json" }),
        ...(timeoutMs !== undefined && { "X-Request-Timeout-Ms": String(left) }),
        ...headers,
      },
      body: this.#body,
      redirect: "manual", // followed, it would take headers along to wherever it leads
      signal: signal ? AbortSignal.any([signal, over]) : over,
    };
  }

  #refusal(response: Response, body: unknown): { failed: CallFailed; retryAfter?: number; mayRepeat: boolean } {
    const told = response.headers.get("Retry-After");
    const retryAfter = told !== null && /^\d+$/.test(told) ? Number(told) : undefined;
    const failed = new Refused(response.status, body, retryAfter);
    const isForNow = [429, 503].includes(failed.status);
    const mayRepeat = isForNow && (!this.#isChange || AT_THE_DOOR.includes(failed.kind));
    return retryAfter === undefined ? { failed, mayRepeat } : { failed, retryAfter, mayRepeat };
  }
}

function isRedirect({ status, type }: Response): boolean {
  return type === "opaqueredirect" || (status >= 300 && status < 400);
}

/** Tells whether a redirect stays with a server; from HTTP to HTTPS it does. */
function isSameServer(from: string, to: string): boolean {
  const [old, next] = [new URL(from), new URL(to)];
  const isSecured = old.protocol === "http:" && next.protocol === "https:" && old.port === "" && next.port === "";
  return old.hostname === next.hostname && (old.origin === next.origin || isSecured);
}

/** Returns what a text holds as JSON; undefined: it is none. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns what an error of fetch says; Node has it in the error's cause. */
function reason(error: unknown): { message: string; code: string } {
  const found = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const { message, code } = Object(found) as { message?: unknown; code?: unknown };
  return { message: String(message || code || found), code: String(code) };
}

/** Waits; throws the signal's reason if it ends the wait. */
export function slept(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, milliseconds);
    function done(): void {
      signal?.removeEventListener("abort", stopped);
      resolve();
    }
    function stopped(): void {
      clearTimeout(timer);
      reject(signal?.reason);
    }
    signal?.addEventListener("abort", stopped, { once: true });
  });
}
