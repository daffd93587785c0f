/** Calls a running polyrank server, from Node or a browser. Bodies and answers have the types of its OpenAPI document. */

import { Attempts, type CallOptions, type Connection, slept } from "./attempts.js";
import { JobEnded, NotAnAnswer, Refused } from "./errors.js";
import type * as api from "./schema.js";

export type { CallOptions } from "./attempts.js";
export * from "./errors.js";
export type * from "./schema.js";

export interface ClientOptions {
  /** Of the server, as in "http://127.0.0.1:8000"; for a pool with a name, "http://127.0.0.1:8000/pools/NAME". */
  baseUrl: string;
  /** If the server has keys. */
  apiKey?: string;
  /** Milliseconds of a call with all its attempts, unless it says otherwise; 30,000 unless given. */
  timeoutMs?: number;
  /** Attempts after the first; 2 unless given. */
  maxRetries?: number;
  /** In place of the platform's own, for proxies and TLS of one's own. */
  fetch?: typeof fetch;
}

/** What became of a ranking, as `feedback` takes it. */
export type FeedbackEvent = Omit<api.EventIn, "event_id"> & { event_id?: string };

type Method = "get" | "post" | "put";
type PathOf<M extends Method> = {
  [P in keyof api.paths]: api.paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof api.paths];
type Operation<M extends Method, P extends keyof api.paths> = api.paths[P][M];
type Json<T> = T extends { content: { "application/json": infer J } } ? J : never;
type Answer<O> = O extends { responses: infer R } ? Json<R[keyof R & (200 | 202)]> : never;
type Body<O> = O extends { requestBody: infer B } ? { body: Json<B> } : { body?: undefined };
type Placed<O> = O extends { parameters: infer P } ? Pick<P, keyof P & ("path" | "query")> : unknown;

// The lists of objects that answers hold.
const LISTS: Record<string, string> = {
  "post /rank": "results",
  "post /rank/batch": "answers",
  "post /explain": "candidates",
  "post /classify": "results",
  "post /v2/rerank": "results",
  "post /v1/embeddings": "data",
  "get /pools": "pools",
  "get /index": "others",
  "get /index/candidates": "candidates",
  "get /index/jobs": "jobs",
};

/** Returns a name that nobody else draws. */
function drawn(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Returns what calls the server. */
export function createClient(options: ClientOptions): Client {
  return new Client(options);
}

/**
 * Calls a running server.
 *
 * A call that the server refuses because it is busy is made again after its Retry-After; a change is made again only if
 * it was surely not made. Each call may throw the kinds of `CallFailed`, the reason of its own `signal`, and a TypeError
 * where `baseUrl`, a header or the body cannot be sent.
 */
export class Client {
  readonly #connection: Connection;

  constructor({ baseUrl, apiKey, timeoutMs = 30_000, maxRetries = 2, fetch = globalThis.fetch }: ClientOptions) {
    const headers: Record<string, string> = apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` };
    this.#connection = { baseUrl: baseUrl.replace(/\/+$/, ""), headers, timeoutMs, maxRetries, fetch };
  }

  /** Calls any route that answers with JSON: `call("get", "/index/jobs/{job_id}", { path: { job_id } })`. */
  async call<M extends Method, P extends PathOf<M>>(
    method: M,
    path: P,
    given: Body<Operation<M, P>> & Placed<Operation<M, P>>,
    options: CallOptions = {},
  ): Promise<Answer<Operation<M, P>>> {
    const { path: inPath = {}, query = {}, body } = given as Given;
    const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(inPath[name])));
    const asked = new URLSearchParams(
      Object.entries(query).flatMap(([name, value]) => (value == null ? [] : [[name, String(value)]])),
    );
    const url = asked.size ? `${filled}?${asked}` : filled;
    const answer = await new Attempts(this.#connection, method.toUpperCase(), url, body, options).made();
    const list = LISTS[`${method} ${path}`];
    this.#require(list === undefined || isList((answer as Record<string, unknown>)[list]));
    return answer as Answer<Operation<M, P>>;
  }

  /** Throws NotAnAnswer unless something holds of an answer. */
  #require(holds: boolean): void {
    const { baseUrl } = this.#connection;
    if (!holds) throw new NotAnAnswer(`${baseUrl}: something answers, but not as polyrank serve does`);
  }

  /** Ranks the pool's replies for a conversation, or the candidates sent along. */
  rank(request: api.RankIn, options?: CallOptions): Promise<api.RankOut> {
    return this.call("post", "/rank", { body: request }, options);
  }

  /**
   * Says what became of rankings: an event, or 1 to 100 of which all count or none. They are on the disk when it
   * returns. An event counts once by its `event_id`; without one it gets a new one, so that this call may be repeated.
   */
  feedback(said: FeedbackEvent | FeedbackEvent[], options?: CallOptions): Promise<api.FeedbackOut> {
    const events = [said].flat().map((event) => ({ ...event, event_id: event.event_id ?? drawn() }));
    return this.call("post", "/feedback", { body: { events } }, options);
  }

  /** Ranks several; what is refused is returned in its place, not thrown. */
  async rankBatch(requests: api.RankIn[], options?: CallOptions): Promise<(api.RankOut | Refused)[]> {
    const { answers } = await this.call("post", "/rank/batch", { body: { requests } }, options);
    this.#require(answers.length === requests.length);
    this.#require(answers.every(({ answer, status }) => (answer ? isList(answer.results) : Number.isInteger(status))));
    return answers.map((each) => each.answer ?? new Refused(each.status, each.problem, each.retry_after ?? undefined));
  }

  /** Tells where the scores of candidates come from. */
  explain(request: api.ExplainIn, options?: CallOptions): Promise<api.ExplainOut> {
    return this.call("post", "/explain", { body: request }, options);
  }

  /** Orders documents by the server's reranker, or by its model where it has none; the best first. */
  async rerank(request: api.CompatRerankIn, options?: CallOptions): Promise<api.RerankResultOut[]> {
    const headers = { ...options?.headers, "X-Rerank-Dialect": "cohere" }; // whatever the server's setting is
    const answer = await this.call("post", "/v2/rerank", { body: request }, { ...options, headers });
    const { results } = answer as api.CompatRerankOut;
    this.#require(results.every(({ index }) => Object.hasOwn(request.documents ?? [], index)));
    return results;
  }

  /** Tells which of the served classifier's classes each text is. */
  classify(request: api.ClassifyIn, options?: CallOptions): Promise<api.ClassifyOut> {
    return this.call("post", "/classify", { body: request }, options);
  }

  /** Returns the vectors of texts as candidates, of length 1. */
  async embed(texts: string[], options?: CallOptions): Promise<number[][]> {
    const body = { input: texts, encoding_format: "float" } as const;
    const { data } = await this.call("post", "/v1/embeddings", { body }, options);
    const vectors = data.map((each) => each.embedding as number[]);
    this.#require(vectors.length === texts.length && vectors.every((each) => Array.isArray(each) && each.every(Number.isFinite)));
    return vectors;
  }

  /** Returns the server's pools; the `path` of one ends the `baseUrl` of a client for it. */
  async pools(options?: CallOptions): Promise<api.PoolOut[]> {
    return (await this.call("get", "/pools", {}, options)).pools;
  }

  /** Returns what is served, what is kept, and the job that runs. */
  index(options?: CallOptions): Promise<api.IndexOut> {
    return this.call("get", "/index", {}, options);
  }

  /** Returns a stored candidate. */
  candidate(id: string, options?: CallOptions): Promise<api.StoredOut> {
    return this.call("get", "/index/candidates/{candidate_id}", { path: { candidate_id: id } }, options);
  }

  /** Yields all stored candidates that pass a filter, fetched page by page. */
  async *candidates(filter?: api.RankIn["filter"], options?: CallOptions): AsyncGenerator<api.CandidateOut> {
    const asked = { limit: 1000, ...(filter && { filter: JSON.stringify(filter) }) };
    const pages = new Set<string>();
    let after: string | null | undefined;
    do {
      const page = await this.call("get", "/index/candidates", { query: { ...asked, after } }, options);
      yield* page.candidates;
      after = page.next;
      this.#require(after == null || (typeof after === "string" && !pages.has(after))); // else they go round in a circle
      if (after != null) pages.add(after);
    } while (after != null);
  }

  /** Adds candidates, or replaces those with the same ids; they can be found when it returns. */
  upsert(candidates: api.PoolCandidateIn[], options?: CallOptions): Promise<api.UpsertedOut> {
    return this.call("put", "/index/candidates", { body: candidates }, options);
  }

  /** Removes candidates; ids that are not there are no error. */
  delete(ids: string[], options?: CallOptions): Promise<api.DeletedOut> {
    return this.call("post", "/index/candidates/delete", { body: { ids } }, options);
  }

  /** Starts a rebuild; `watch` follows it. Repetitions have its Idempotency-Key, so they start no second one. */
  rebuild(request: api.IndexIn, options?: CallOptions): Promise<api.JobOut> {
    const headers = { "Idempotency-Key": drawn(), ...options?.headers };
    return this.call("post", "/index", { body: request }, { ...options, headers });
  }

  /** Returns how far a job is. */
  job(id: string, options?: CallOptions): Promise<api.JobOut> {
    return this.call("get", "/index/jobs/{job_id}", { path: { job_id: id } }, options);
  }

  /** Returns the latest jobs, newest first. */
  async jobs(limit = 20, options?: CallOptions): Promise<api.JobOut[]> {
    return (await this.call("get", "/index/jobs", { query: { limit } }, options)).jobs;
  }

  /** Stops a job and removes what it has built. */
  cancel(id: string, options?: CallOptions): Promise<api.JobOut> {
    return this.call("post", "/index/jobs/{job_id}/cancel", { path: { job_id: id } }, options);
  }

  /** Yields a job's state every so many milliseconds until it has ended; throws `JobEnded` if it did not succeed. */
  async *watch(id: string, everyMs = 1000, options?: CallOptions): AsyncGenerator<api.JobOut> {
    for (;;) {
      const job = await this.job(id, options);
      this.#require(typeof job.state === "string");
      yield job;
      if (job.state === "succeeded") return;
      if (job.state === "failed" || job.state === "cancelled") throw new JobEnded(job);
      await slept(everyMs, options?.signal);
    }
  }

  /** Switches to a generation. */
  activate(generation: string, options?: CallOptions): Promise<api.IndexOut> {
    return this.call("post", "/index/activate", { body: { generation } }, options);
  }

  /** Switches back to the generation that was active before. */
  rollback(options?: CallOptions): Promise<api.IndexOut> {
    return this.call("post", "/index/rollback", {}, options);
  }

  /** Loads a generation beside the live one, for requests with `generation: "trial"`. */
  trial(generation: string, options?: CallOptions): Promise<api.IndexOut> {
    return this.call("post", "/index/trial", { body: { generation } }, options);
  }

  /** Ends the trial, if there is one. */
  endTrial(options?: CallOptions): Promise<api.IndexOut> {
    return this.call("post", "/index/trial/end", {}, options);
  }
}

/** Tells whether a value is a list of objects. */
function isList(value: unknown): boolean {
  return Array.isArray(value) && value.every((each) => typeof each === "object" && each !== null);
}

interface Given {
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  body?: unknown;
}
