/** What an application does with the client: `node program.js DEED URL KEY [NO_URL]` prints what came of it as JSON. */

import { CallFailed, createClient, JobEnded, NoAnswer, Refused, type RankIn, type RankOut } from "polyrank";

declare const process: { argv: string[] };

const [deed = "", baseUrl = "", apiKey = "", nowhere = ""] = process.argv.slice(2);
const polyrank = createClient({ baseUrl, apiKey });
const hello: RankIn = { context: ["w1 w2", { role: "user", text: "w3" }], top_k: 3 };

// @ts-expect-error a field that the API does not have
const misspelt: RankIn = { context: "w1", topk: 3 };
// @ts-expect-error a route that takes no PUT
const wrongMethod = () => polyrank.call("put", "/rank", { body: hello });
// @ts-expect-error a body is needed
const noBody = () => polyrank.call("post", "/rank", {});

/** Returns the error that a call ends with. */
async function error(call: Promise<unknown>): Promise<unknown> {
  return call.then(
    (answer) => ({ answer }),
    (failed: unknown) => {
      if (failed instanceof Refused) {
        const { name, status, kind, requestId, findings, retryAfter } = failed;
        return { name, status, kind, named: requestId !== "", findings, retryAfter };
      }
      if (failed instanceof NoAnswer) return { name: failed.name, maybeDone: failed.maybeDone, message: failed.message };
      return { name: (failed as Error).name, isOurs: failed instanceof CallFailed };
    },
  );
}

const deeds: Record<string, () => Promise<unknown>> = {
  /** The requests that read. */
  async asks() {
    const ranking: RankOut = await polyrank.rank(hello, { timeoutMs: 20_000 });
    const [first, ...others] = await polyrank.rankBatch([hello, { context: "w1", candidates: [{ id: "none" }] }]);
    const ids: string[] = [];
    for await (const candidate of polyrank.candidates({ even: true })) ids.push(candidate.id);
    return {
      ids: ranking.results.map((each) => each.id),
      vector: typeof ranking.results[0]?.scores.vector,
      batch: [first instanceof Refused ? null : first?.results.map((each) => each.id), others.map((each) => each instanceof Refused && each.kind)],
      rerank: await polyrank.rerank({ query: "w1 w2", documents: ["w9", "w1 w2"], top_n: 1 }),
      lengths: (await polyrank.embed(["w1", "w2 w3"])).map((each) => Math.hypot(...each)),
      explained: (await polyrank.explain({ context: "w1", candidates: [{ id: ids[0] ?? "" }] })).candidates.length,
      even: ids.length,
      stored: (await polyrank.candidate("c1")).text,
      pools: (await polyrank.pools()).map(({ path, candidates }) => [path, candidates]),
      unheard: (await polyrank.call("get", "/info", {})).version,
    };
  },

  /** What became of a ranking; the first answer to it is lost. */
  async feedback() {
    const { ranking_id = null, results } = await polyrank.rank({ ...hello, conversation: "c1" });
    const sent: unknown[] = [];
    const losing: typeof fetch = async (url, init) => {
      const answer = await fetch(url, init);
      if (sent.push(JSON.parse(String(init?.body))) === 1) throw new TypeError("lost");
      return answer;
    };
    const said = { ranking_id: ranking_id ?? "", kind: "chosen", id: results[0]?.id ?? "" } as const;
    return {
      told: await createClient({ baseUrl, apiKey, fetch: losing }).feedback([said, { ...said, kind: "up", event_id: "mine" }]),
      sent,
      madeUp: await error(polyrank.feedback({ ranking_id: "01", kind: "resolved" })),
      unrecorded: (await polyrank.rank({ ...hello, log: false })).ranking_id ?? "none",
    };
  },

  async refusals() {
    return {
      wrong: await error(polyrank.rank({ context: [] })),
      unknown: await error(polyrank.candidate("a/b?c")),
      key: await error(createClient({ baseUrl, apiKey: "another" }).rank(hello)),
      job: await error(polyrank.job("none")),
      gone: await error(createClient({ baseUrl: nowhere }).upsert([{ text: "w1" }])),
      elsewhere: await error(createClient({ baseUrl: `${baseUrl}/docs#` }).index()),
      stopped: await error(polyrank.rank(hello, { signal: AbortSignal.abort() })),
    };
  },

  /** Updates while rankings go on: what was acknowledged is found, and nothing fails. */
  async updates() {
    let isOver = false;
    let rankings = 0;
    const others = [1, 2, 3].map(async () => {
      for (; !isOver; rankings += 1) await polyrank.rank(hello);
    });
    const found: boolean[] = [];
    for (let at = 0; at < 10; at += 1) {
      const { revision } = await polyrank.upsert([{ id: "new", text: `w4 w5 w${at + 10}`, metadata: { at } }]);
      const asked = { context: "w4 w5", min_revision: revision, filter: { at }, top_k: 1 };
      found.push((await polyrank.rank(asked)).results[0]?.text === `w4 w5 w${at + 10}`);
    }
    const { revision } = await polyrank.delete(["new"]);
    isOver = true;
    await Promise.all(others);
    const left = await polyrank.rank({ context: "w4", min_revision: revision, filter: { at: { exists: true } } });
    return { found, rankings, left: left.results.length };
  },

  async rebuild() {
    const texts = ["w1 w2", "w3"].map((text) => ({ text }));
    const states: string[] = [];
    const begun = await polyrank.rebuild({ candidates: texts });
    for await (const job of polyrank.watch(begun.id, 50)) states.push(job.state);
    const count = (await polyrank.index()).active?.count;
    const back = (await polyrank.rollback()).active?.count;
    const wrong = await polyrank.rebuild({ pool: "damaged.jsonl" });
    let ended: unknown;
    try {
      for await (const _ of polyrank.watch(wrong.id, 50));
    } catch (failed) {
      ended = failed instanceof JobEnded && failed.job.state;
    }
    return { state: states.at(-1), count, back, ended, jobs: (await polyrank.jobs()).length };
  },

  /** With a key that may ask once a second. */
  async patience() {
    const began = performance.now();
    const answered = [await polyrank.rank(hello), await polyrank.rank(hello)].length;
    const waited = performance.now() - began;
    const hasty = createClient({ baseUrl, apiKey, maxRetries: 0 });
    const inVain = performance.now();
    return {
      answered,
      waited,
      refused: await error(hasty.rank(hello)),
      late: await error(polyrank.rank(hello, { timeoutMs: 100 })),
      within: performance.now() - inVain,
    };
  },

  /** Answers that are not the server's, and what cannot be sent. */
  async strangers() {
    let asked = 0;
    const answering = (body: string, status = 200, headers = {}) =>
      createClient({ baseUrl, maxRetries: 0, fetch: async () => (asked++, new Response(body, { status, headers })) });
    const cyclic: Record<string, unknown> = {};
    cyclic["self"] = cyclic;
    const told = {
      page: await error(answering("<html>Bad Gateway</html>", 502).rank(hello)),
      number: await error(answering('{"error": {"code": 404, "message": "gone"}}', 404).upsert([])),
      mixed: await error(answering('{"type": 5, "detail": {}, "errors": "none"}', 400).rank(hello)),
      text: await error(answering('"ok"').rank(hello)),
      moved: await error(answering("", 301, { Location: "https://elsewhere/index" }).rebuild({ candidates: [] })),
    };
    const sent = asked;
    const unsent = [
      await error(answering("{}").upsert([{ text: "w1", metadata: cyclic as never }])),
      await error(createClient({ baseUrl: "localhost:8000" }).upsert([])),
      await error(createClient({ baseUrl: "no url" }).upsert([])),
      await error(createClient({ baseUrl, apiKey: "ключ" }).upsert([])),
    ];
    const patient = await createClient({ baseUrl, apiKey, timeoutMs: Infinity }).rank(hello);
    return { ...told, unsent, asked: asked - sent, patient: patient.results.length };
  },

  /** Answers of a hostile server: `nowhere` is its URL; another path, another answer. */
  async hostile() {
    const at = (path: string, more = {}) => createClient({ baseUrl: nowhere + path, apiKey, maxRetries: 0, ...more });
    const listed = async () => {
      for await (const _ of at("/circle").candidates());
    };
    const empty = at("/empty");
    const ended = async (path: string) => {
      const began = performance.now();
      return { told: await error(at(path, { timeoutMs: 500 }).index()), within: performance.now() - began < 10_000 };
    };
    return {
      dripping: await ended("/dripping"),
      continuing: await ended("/continuing"),
      folded: await error(at("/folded").index()),
      circle: await error(listed()),
      moved: await error(at("/moved").index()),
      there: (await at("/here").jobs()).length,
      shapes: [
        await error(empty.rank(hello)),
        await error(empty.rankBatch([hello])),
        await error(empty.rerank({ query: "q", documents: ["a"] })),
        await error(empty.embed(["a"])),
        await error(empty.pools()),
        await error(empty.jobs()),
        await error(empty.classify({ texts: ["a"] })),
        await error(empty.watch("j1").next()),
        await error(at("/others").rerank({ query: "q", documents: ["a"] })),
        await error(at("/others").embed(["a"])),
        await error(at("/others").rankBatch([hello])),
      ],
    };
  },

  /** A signal ends the wait between two looks at a job. */
  async unwatched() {
    const begun = await polyrank.rebuild({ candidates: [{ text: "w1" }] });
    const began = performance.now();
    const looked = async () => {
      for await (const _ of polyrank.watch(begun.id, 60_000, { signal: AbortSignal.timeout(300) }));
    };
    const ended = await error(looked());
    const soon = performance.now() - began < 30_000;
    for await (const _ of polyrank.watch(begun.id, 50));
    await polyrank.rollback();
    return { ended, soon };
  },

  /** Where requests go, and with which headers. */
  async paths() {
    const asked: unknown[] = [];
    const told: typeof fetch = (url, init) => {
      asked.push([init?.method, url, init?.headers]);
      return Promise.resolve(new Response('{"results": [], "candidates": []}'));
    };
    const shop = createClient({ baseUrl: "https://host/pools/shop/", apiKey: "k", fetch: told });
    await shop.rank(hello, { timeoutMs: 500, headers: { "X-Request-ID": "mine" } });
    await shop.candidate("a/b?c");
    await shop.call("get", "/index/candidates", { query: { limit: 2, filter: '{"a": 1}' } });
    return asked;
  },
};

console.log(JSON.stringify(await deeds[deed]?.()));
