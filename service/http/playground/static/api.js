// Calls the server. It holds the key: in memory, and in sessionStorage only where the user asked for that.

const BASE = new URL("..", import.meta.url); // also behind a proxy that serves polyrank below a path
const KEPT = "polyrank-key";
/** Where the server's routes begin, and the path of the pool that this page is for; empty: one without a name. */
export const [ROOT, POOL] = BASE.pathname.match(/^(.*?)((?:\/pools\/[^/]+)?)\/$/).slice(1);

let key = kept();
const heard = new Set(); // told of every call whether somebody answered it

function kept() {
	try {
		return sessionStorage.getItem(KEPT) ?? "";
	} catch {
		return ""; // storage is switched off
	}
}

export const hasKey = () => key !== "";
export const isKept = () => kept() !== "";

/** Use a key from now on; an empty one forgets it. `keep`: until the tab is closed, also when it is loaded again. */
export function useKey(given, keep) {
	key = given;
	try {
		if (keep && given) sessionStorage.setItem(KEPT, given);
		else sessionStorage.removeItem(KEPT);
	} catch {
		// storage is switched off: the key is kept in memory alone
	}
}

/** A name that nobody else draws; `randomUUID` is missing where a page comes without TLS from another machine. */
export const drawn = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** An answer that is an error: its status, and the fields of the problem. */
export class Problem extends Error {
	constructor(status, body, retryAfter) {
		super(body?.detail ?? `the server answered ${status}`);
		this.status = status;
		this.title = body?.title ?? "The server answered with an error";
		this.kind = (body?.type ?? "").split(":").pop();
		this.errors = body?.errors ?? [];
		this.requestId = body?.request_id ?? "";
		this.retryAfter = Number(retryAfter) || 0;
	}

	/** What is wrong with a field, for instance `filter`, and with what is inside it. */
	at(field) {
		return this.errors
			.filter(({ where }) => where === field || where.startsWith(`${field}.`))
			.map(({ where, what }) => (where === field ? what : `${where.slice(field.length + 1)}: ${what}`))
			.join("; ");
	}
}

/** Nobody answered. */
export class Unreachable extends Error {
	title = "Nobody answers";
}

/** Call `tell(isAnswered)` after every call; returns how to end that. */
export function listen(tell) {
	heard.add(tell);
	return () => heard.delete(tell);
}

/** Send a request and return the JSON of its answer. Throws Problem or Unreachable. */
export async function call(method, path, body, signal) {
	const headers = { Accept: "application/json" };
	if (key) headers.Authorization = `Bearer ${key}`;
	if (body !== undefined) headers["Content-Type"] = "application/json";
	let answer, content;
	try {
		const sent = body === undefined ? undefined : JSON.stringify(body);
		answer = await fetch(new URL(path, BASE), { method, headers, body: sent, signal, cache: "no-store" });
		content = await answer.text();
	} catch (error) {
		if (signal?.aborted) throw error;
		for (const tell of heard) tell(false);
		throw new Unreachable("no answer came: look whether it was done");
	}
	for (const tell of heard) tell(true);
	let parsed = null;
	try {
		parsed = JSON.parse(content);
	} catch {
		// a proxy's page of an error, for instance
	}
	if (!answer.ok || parsed === null) throw new Problem(answer.status, parsed, answer.headers.get("Retry-After"));
	return parsed;
}
